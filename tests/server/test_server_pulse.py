from __future__ import annotations

import pytest

from corefw.server.server_pulse import ServerLimits, ServerPulse
from tests.engine.scripted_core import ScriptedBoard

TICK_S = 0.1


def pulse_of(board: ScriptedBoard, *, is_serving: bool = True) -> ServerPulse:
    pulse = ServerPulse(board, ServerLimits())  # type: ignore[arg-type]
    pulse.is_serving = is_serving
    return pulse


def look(board: ScriptedBoard, pulse: ServerPulse, for_s: float, *, turning: bool) -> None:
    for _ in range(round(for_s / TICK_S)):
        board.num_turns += turning
        pulse.look(TICK_S)


@pytest.mark.parametrize(
    ("is_beating", "waits_s", "said"),
    [(False, (1.0, 0.5, 12, 3), "no sign of life"), (True, (4, 2, 50, 5), "event loop")],
    ids=["silence", "a-loop-that-does-not-get-on"],
)
def test_it_is_trouble_first_and_death_later(is_beating: bool, waits_s: tuple[float, ...], said: str) -> None:
    board = ScriptedBoard()
    pulse = pulse_of(board)
    look(board, pulse, 100, turning=True)
    assert (pulse.trouble, pulse.verdict) == (None, None)
    board.is_beating = is_beating
    healthy_s, troubled_s, longer_s, dead_s = waits_s
    look(board, pulse, healthy_s, turning=False)
    assert pulse.trouble is None
    look(board, pulse, troubled_s, turning=False)
    assert said in (pulse.trouble or "")
    look(board, pulse, longer_s, turning=False)
    assert pulse.verdict is None
    look(board, pulse, dead_s, turning=False)
    assert said in (pulse.verdict or "")


def test_one_that_goes_on_is_in_no_trouble() -> None:
    board = ScriptedBoard()
    pulse = pulse_of(board)
    board.is_beating = False
    look(board, pulse, 5, turning=False)
    board.is_beating = True
    look(board, pulse, TICK_S, turning=True)
    assert (pulse.trouble, pulse.verdict) == (None, None)


def test_looks_between_two_heartbeats_count_for_the_loop_as_well() -> None:
    board = ScriptedBoard()
    pulse = pulse_of(board)
    for number in range(60):
        board.is_beating = number % 2 == 0
        pulse.look(TICK_S)
    assert "event loop for 6 s" in (pulse.trouble or "")


def test_a_loop_has_no_turns_before_it_serves() -> None:
    board = ScriptedBoard()
    pulse = pulse_of(board, is_serving=False)
    look(board, pulse, 1000, turning=False)
    assert (pulse.trouble, pulse.verdict) == (None, None)


def test_a_start_may_be_silent_for_longer() -> None:
    board = ScriptedBoard()
    pulse = pulse_of(board, is_serving=False)
    board.is_beating = False
    look(board, pulse, 100, turning=False)
    assert (pulse.trouble, pulse.verdict) == (None, None)
    look(board, pulse, 25, turning=False)
    assert pulse.verdict is not None


def test_time_in_which_nobody_looked_hardly_counts() -> None:
    board = ScriptedBoard()
    board.is_beating = False
    pulse = pulse_of(board)
    pulse.look(3600)
    assert (pulse.trouble, pulse.verdict) == (None, None)
