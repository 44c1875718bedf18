from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from corefw.engine.step_board import BEAT_S, BoardMirror, BoardReader, Doing, StepBoard
from corefw.messages.scheduling import CachedRequests, SchedulerOutput
from tests.engine.leftovers import wait_until


@pytest.fixture
def reader() -> Iterator[BoardReader]:
    made = BoardReader()
    yield made
    made.close()


@pytest.fixture
def board(reader: BoardReader) -> StepBoard:
    return StepBoard(os.dup(reader.fd))


def step(*ids: str) -> SchedulerOutput:
    return SchedulerOutput(
        step=0,
        new_requests=[],
        cached_requests=CachedRequests(request_ids=[], num_computed_tokens=[], num_output_tokens=[], new_block_ids=[]),
        num_scheduled_tokens=dict.fromkeys(ids, 2),
        total_num_scheduled_tokens=2 * len(ids),
        finished_request_ids=[],
        preempted_request_ids=[],
        block_ids_to_zero=[],
    )


def test_the_requests_of_a_step_can_be_read_while_it_runs(reader: BoardReader, board: StepBoard) -> None:
    assert reader.running_ids() == ()
    board.step_begins(step("a", "b"))
    assert reader.is_stepping
    assert reader.running_ids() == ("a", "b")
    assert reader.num_step_tokens == 4
    board.step_ends()
    assert not reader.is_stepping
    assert reader.running_ids() == ()
    assert (reader.num_ended, reader.num_ended_tokens) == (1, 4)
    board.step_begins(step("b"))
    assert reader.running_ids() == ("b",)


def test_of_several_steps_all_requests_count_and_the_oldest_ends_first(reader: BoardReader, board: StepBoard) -> None:
    board.step_begins(step("a", "b", "c"))
    board.step_begins(step("c", "d"))
    assert reader.running_ids() == ("a", "b", "c", "d")
    assert reader.num_step_tokens == 6
    board.step_ends()
    assert reader.running_ids() == ("c", "d")
    assert (reader.num_step_tokens, reader.num_ended_tokens) == (4, 6)


def test_what_the_core_turns_to_can_be_read(reader: BoardReader, board: StepBoard) -> None:
    assert (reader.doing, reader.num_turns) == (Doing.WAITING, 0)
    board.turns_to(Doing.CALL)
    assert (reader.doing, reader.num_turns) == (Doing.CALL, 1)
    board.turns_to(Doing.CALL)
    assert reader.num_turns == 2


def test_a_step_without_requests_has_none(reader: BoardReader, board: StepBoard) -> None:
    board.step_begins(step("a"))
    board.step_ends()
    board.step_begins(step())
    assert reader.is_stepping
    assert reader.running_ids() == ()


def test_more_ids_than_there_is_room_for_are_cut(reader: BoardReader, board: StepBoard) -> None:
    ids = [f"{i:064}" for i in range(50_000)]
    board.step_begins(step(*ids))
    assert len(reader.running_ids()) > 30_000


def test_it_beats_until_it_is_stopped(reader: BoardReader, board: StepBoard) -> None:
    board.start_beating()
    assert wait_until(lambda: reader.num_beats >= 2, 50 * BEAT_S)
    board.stop()
    assert wait_until(lambda: "heartbeat" not in {thread.name for thread in threading.enumerate()}, 50 * BEAT_S)
    beats = reader.num_beats
    time.sleep(2 * BEAT_S)
    assert reader.num_beats == beats


def test_what_a_killed_process_wrote_is_still_there(reader: BoardReader) -> None:
    code = """if True:
        import os, signal, sys
        from corefw.engine.step_board import StepBoard
        from tests.engine.test_step_board import step
        board = StepBoard(int(sys.argv[1]))
        board.step_begins(step("one", "two"))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    child = subprocess.run(
        [sys.executable, "-c", code, str(reader.fd)], pass_fds=(reader.fd,), cwd=Path(__file__).parents[2], check=False
    )
    assert child.returncode == -signal.SIGKILL
    assert reader.running_ids() == ("one", "two")


def test_a_closed_one_reads_as_nothing(reader: BoardReader, board: StepBoard) -> None:
    board.step_begins(step("a"))
    reader.close()
    reader.close()
    assert reader.running_ids() == ()
    assert reader.num_beats == 0


def test_what_a_board_elsewhere_shows_is_read_here(reader: BoardReader, board: StepBoard) -> None:
    elsewhere = BoardReader()
    there = StepBoard(os.dup(elsewhere.fd))
    mirror = BoardMirror(reader.fd)
    for ids in (["a", "b"], ["c"], []):  # ids lie in two places by turns
        there.step_begins(step(*ids))
        there.turns_to(Doing.CALL)
        mirror.show(elsewhere.snapshot())
        assert (reader.running_ids(), reader.doing) == (tuple(ids), Doing.CALL)
        assert reader.num_turns == elsewhere.num_turns
        there.step_ends()
    mirror.close()
    mirror.show(elsewhere.snapshot())
    elsewhere.close()
    assert reader.is_stepping
