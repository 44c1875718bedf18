from __future__ import annotations

from corefw.engine.liveness import Pulse, StepTimes
from corefw.engine.restart_policy import LivenessLimits
from corefw.engine.step_board import Doing
from tests.engine.scripted_core import ScriptedBoard

LIMITS = LivenessLimits()
TICK_S = 0.1


def pulse_of(board: ScriptedBoard, times: StepTimes | None = None, *, is_ready: bool = True) -> Pulse:
    return Pulse(board, LIMITS, times or StepTimes(LIMITS), is_ready=is_ready)  # type: ignore[arg-type]


def look(pulse: Pulse, for_s: float) -> None:
    for _ in range(round(for_s / TICK_S)):
        pulse.look(TICK_S)


def run_step(board: ScriptedBoard, pulse: Pulse, num_tokens: int, took_s: float) -> None:
    board.is_stepping, board.num_step_tokens = True, num_tokens
    look(pulse, took_s)
    board.is_stepping = False
    board.num_ended += 1
    board.num_ended_tokens = num_tokens
    look(pulse, TICK_S)


def test_silence_is_trouble_soon_and_death_later() -> None:
    board = ScriptedBoard()
    pulse = pulse_of(board)
    look(pulse, 60)
    assert (pulse.trouble, pulse.verdict) == (None, None)
    board.is_beating = False
    look(pulse, 1.5)
    assert "no sign of life" in (pulse.trouble or "")
    look(pulse, 12)
    assert pulse.verdict is None
    look(pulse, 3)
    assert (pulse.verdict or "").startswith("showed no sign of life for 1")


def test_a_start_may_be_silent_for_longer() -> None:
    board = ScriptedBoard()
    board.is_beating = False
    pulse = pulse_of(board, is_ready=False)
    look(pulse, 60)
    assert pulse.verdict is None
    look(pulse, 61)
    assert pulse.verdict is not None


def test_time_in_which_nobody_looked_hardly_counts() -> None:
    board = ScriptedBoard()
    board.is_beating = False
    pulse = pulse_of(board)
    pulse.look(3600)
    assert (pulse.trouble, pulse.verdict) == (None, None)


def test_a_step_of_a_known_size_may_take_fifteen_seconds_or_ten_times_the_longest() -> None:
    board = ScriptedBoard()
    pulse = pulse_of(board)
    run_step(board, pulse, 1, 0.1)
    run_step(board, pulse, 1000, 3)
    board.is_stepping, board.num_step_tokens = True, 1
    look(pulse, 14)
    assert pulse.verdict is None
    look(pulse, 2)
    assert pulse.verdict == "was for more than 15 s in a step of 1 tokens"
    board.num_step_tokens = 900
    slow = pulse_of(board, pulse._times)
    look(slow, 29)
    assert slow.verdict is None
    look(slow, 3)
    assert slow.verdict is not None


def test_the_first_step_of_a_size_may_take_long() -> None:
    board = ScriptedBoard()
    pulse = pulse_of(board)
    run_step(board, pulse, 1, 0.1)
    board.is_stepping, board.num_step_tokens = True, 2048
    look(pulse, 290)
    assert pulse.verdict is None
    look(pulse, 11)
    assert pulse.verdict is not None


def test_a_larger_step_says_what_a_smaller_one_may_take() -> None:
    times = StepTimes(LIMITS)
    times.took(2048, 1.0)
    assert times.limit_s(16) == 15
    times.took(2048, 4.0)
    assert times.limit_s(16) == 40
    assert times.limit_s(4096) == 300


def test_many_steps_one_after_another_are_no_long_one() -> None:
    board = ScriptedBoard()
    pulse = pulse_of(board)
    board.is_stepping = True
    for _ in range(1000):
        board.num_ended += 1
        pulse.look(TICK_S)
    assert pulse.verdict is None


def test_what_is_done_between_steps_may_take_fifteen_seconds() -> None:
    board = ScriptedBoard()
    pulse = pulse_of(board)
    look(pulse, 60)  # it waits for something to do
    board.doing = Doing.WORK
    for _ in range(1000):
        board.num_turns += 1
        pulse.look(TICK_S)
    assert (pulse.trouble, pulse.verdict) == (None, None)
    look(pulse, 14)
    assert (pulse.trouble, pulse.verdict) == (None, None)
    look(pulse, 2)
    assert pulse.verdict == "was for more than 15 s in what it does between steps"


def test_a_call_may_take_five_minutes_but_is_trouble_before() -> None:
    board = ScriptedBoard()
    pulse = pulse_of(board)
    run_step(board, pulse, 1, 0.1)
    board.is_stepping, board.num_step_tokens, board.doing = True, 1, Doing.CALL  # a step ahead, which isn't late
    look(pulse, 14)
    assert pulse.trouble is None
    look(pulse, 276)
    assert (pulse.trouble or "").endswith("in a call")
    assert pulse.verdict is None
    look(pulse, 11)
    assert pulse.verdict == "was for more than 300 s in a call"


def test_trouble_with_a_call_ends_with_the_call() -> None:
    board = ScriptedBoard()
    pulse = pulse_of(board)
    board.doing = Doing.CALL
    look(pulse, 20)
    assert pulse.trouble is not None
    board.num_turns, board.doing = 1, Doing.WAITING
    look(pulse, TICK_S)
    assert (pulse.trouble, pulse.verdict) == (None, None)


def test_the_time_of_a_step_is_not_time_between_steps() -> None:
    board = ScriptedBoard()
    pulse = pulse_of(board)
    board.doing = Doing.WORK
    look(pulse, 10)
    run_step(board, pulse, 2048, 100)
    look(pulse, 10)
    assert (pulse.trouble, pulse.verdict) == (None, None)


def test_a_start_that_beats_may_take_its_time_but_not_for_ever() -> None:
    pulse = Pulse(ScriptedBoard(), LIMITS, StepTimes(LIMITS), is_ready=False, start_limit_s=300)  # type: ignore[arg-type]
    look(pulse, 290)
    assert pulse.verdict is None
    look(pulse, 11)
    assert (pulse.verdict or "").startswith("wasn't ready after 30")
