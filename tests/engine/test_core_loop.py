from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from corefw.engine.core import EngineCore
from corefw.engine.core_loop import CoreLoop
from corefw.engine.step_board import BoardReader, Doing, StepBoard
from corefw.errors import EngineDeadError
from corefw.messages.control import UtilityCall
from corefw.messages.outputs import EngineCoreOutput, EngineCoreOutputs, FinishReason
from corefw.observability.logging import logging_settings
from tests.engine.fake_engine import WATCHED, WatchedExecutor, config, expected, plugins, request, tokens
from tests.engine.leftovers import wait_until


class Running:
    """A loop on a thread, and what it sent."""

    def __init__(self) -> None:
        self.core = EngineCore(config(distributed_executor_backend=WATCHED), plugins())
        self.loop = CoreLoop(self.core, self._take)
        self.sent: list[EngineCoreOutputs] = []
        self.error: Exception | None = None
        self._changed = threading.Condition()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.loop.run()
        except Exception as error:
            self.error = error

    def _take(self, outputs: EngineCoreOutputs) -> None:
        with self._changed:
            self.sent.append(outputs)
            self._changed.notify_all()

    def outputs(self, request_id: str) -> list[EngineCoreOutput]:
        return [output for message in self.sent for output in message.outputs if output.request_id == request_id]

    def ends(self, request_id: str) -> list[FinishReason]:
        return [output.finish_reason for output in self.outputs(request_id) if output.finish_reason]

    def wait_for_end(self, request_id: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.ends(request_id), 5)

    def wait_for_message(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.sent, 5)


@pytest.fixture
def running() -> Iterator[Running]:
    made = Running()
    yield made
    made.loop.stop()
    if made.thread.is_alive():
        made.thread.join(5)
    assert not made.thread.is_alive()
    made.core.shutdown()


def test_requests_run_until_the_loop_is_stopped(running: Running) -> None:
    running.thread.start()
    for request_id in "ab":
        running.loop.add_request(request(request_id))
    running.wait_for_end("a")
    running.wait_for_end("b")
    assert tokens(running.outputs("a")) == expected("a")
    running.loop.stop()
    running.thread.join(5)
    assert running.error is None


def test_an_aborted_id_can_come_back_in_the_next_message(running: Running) -> None:
    # Everything is in the inbox before the loop starts: the abort must end the first request and never the second.
    running.loop.add_request(request("a"))
    running.loop.abort(["a"])
    running.loop.add_request(request("a"))
    running.thread.start()
    running.loop.add_request(request("b"))
    running.wait_for_end("b")
    assert running.ends("a") == [FinishReason.ABORT, FinishReason.LENGTH]
    assert tokens(running.outputs("a")) == expected("a")


def test_an_abort_that_arrives_during_a_step_is_taken_before_its_result(running: Running) -> None:
    started, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        assert go_on.wait(5)

    WatchedExecutor.latest.during_step = hold
    running.thread.start()
    running.loop.add_request(request("a"))
    assert started.wait(5)
    running.loop.abort(["a"])
    go_on.set()
    running.wait_for_end("a")
    assert tokens(running.outputs("a")) == []
    assert running.ends("a") == [FinishReason.ABORT]


def test_a_call_that_fails_is_answered_and_the_loop_goes_on(running: Running) -> None:
    running.thread.start()
    running.loop.call(UtilityCall(call_id=7, method="set_log_level", args=[1, 2, 3]))
    running.wait_for_message()
    utility = running.sent[0].utility
    assert utility is not None
    assert utility.call_id == 7
    assert "TypeError" in (utility.error or "")
    running.loop.add_request(request("a"))
    running.wait_for_end("a")


def test_a_worker_that_dies_while_the_core_is_idle_ends_the_loop(running: Running) -> None:
    running.thread.start()
    running.loop.add_request(request("a"))
    running.wait_for_end("a")
    WatchedExecutor.latest.fail("rank 1 was killed")
    running.thread.join(5)
    assert isinstance(running.error, EngineDeadError)


def test_the_board_tells_what_the_loop_is_at(running: Running) -> None:
    reader = BoardReader()
    running.core.board = StepBoard(os.dup(reader.fd))
    seen: list[Doing] = []
    WatchedExecutor.latest.during_step = WatchedExecutor.latest.during_call = lambda: seen.append(reader.doing)
    running.thread.start()
    running.loop.add_request(request("a", 1))
    running.wait_for_end("a")
    assert wait_until(lambda: reader.doing is Doing.WAITING, 5)
    running.loop.call(UtilityCall(call_id=1, method="set_log_level", args=[logging_settings()[0]]))
    assert wait_until(lambda: seen[-1] is Doing.CALL and reader.doing is Doing.WAITING, 5)
    assert set(seen[:-1]) == {Doing.WORK}
    num_turns = reader.num_turns
    running.loop.add_request(request("b", 20))
    running.wait_for_end("b")
    assert reader.num_turns >= num_turns + 20
    reader.close()
