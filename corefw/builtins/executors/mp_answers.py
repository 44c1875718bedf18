"""Answers of worker processes: one from each rank to each command, in the order of the commands."""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from corefw.errors import EngineDeadError
from corefw.runtime.distributed.broadcast_queue import SPIN_S, BroadcastReader, QueueFds
from corefw.runtime.distributed.futures import AskedFuture
from corefw.runtime.distributed.worker_messages import Answer, cause

__all__ = ["AnswerBox", "Liveness", "PendingAnswers"]

_T = TypeVar("_T")

_STRAGGLER_S = 10.0
# How long after a rank's complaint about the others the kernel may still take to report which of them has died.
_LAST_WORDS_S = 1.0


class Liveness:
    """Whether the workers can go on: they have failed for good once one of them has.

    Attributes:
        failed_fd: readable from then on; somebody else's to close.
        reason: why; None as long as they live.
    """

    def __init__(self, failed_fd: int, on_failure: Callable[[str], None]) -> None:
        self.failed_fd = failed_fd
        self.reason: str | None = None
        self._on_failure = on_failure

    def fail(self, reason: str) -> None:
        """From any thread; the first reason counts."""
        if self.reason is None:
            self.reason = reason
            self._on_failure(reason)

    def check(self) -> None:
        """Raises EngineDeadError when they have failed."""
        if self.reason is not None:
            raise EngineDeadError(self.reason)


class PendingAnswers(AskedFuture[_T]):
    """What all ranks answer to a command: no thread has to be woken for a step.

    Args:
        box: where its answers arrive.
        num_ranks: how many there are.
        finish: makes the result of the answers, when none is a failure.
        is_step: ranks may wait for one another in it.

    Attributes:
        answers: by rank; None where there is none yet.
    """

    def __init__(self, box: AnswerBox, num_ranks: int, finish: Callable[[list[Answer]], _T], *, is_step: bool) -> None:
        super().__init__()
        self._box = box
        self._finish = finish
        self.is_step = is_step
        self.answers: list[Answer | None] = [None] * num_ranks

    def missing(self) -> list[int]:
        """Ranks that haven't answered."""
        return [rank for rank, answer in enumerate(self.answers) if answer is None]

    def failures(self) -> dict[int, Exception]:
        """What ranks have raised so far."""
        told = ((rank, answer.failure) for rank, answer in enumerate(self.answers) if answer is not None)
        return {rank: failure.to_exception(rank) for rank, failure in told if failure is not None}

    def complete(self) -> None:
        """Set the result; all answers are there."""
        answers = [answer for answer in self.answers if answer is not None]
        error = cause(answers)
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(self._finish(answers))

    def look(self, *, wait: bool) -> None:
        self._box.receive(self, wait=wait)


class AnswerBox:
    """Used by one thread.

    Args:
        queues: one a rank.
        decode: makes an answer of frames.
        liveness: of the workers.
        straggler_s: when one rank has failed in a step the others have so long to finish it: they may wait for it.
    """

    def __init__(
        self,
        queues: Sequence[QueueFds],
        decode: Callable[..., Answer],
        liveness: Liveness,
        *,
        straggler_s: float = _STRAGGLER_S,
    ) -> None:
        self._straggler_s = straggler_s
        self._filled = [queue.filled[0] for queue in queues]
        self._readers = [BroadcastReader(queue, decode, [liveness.failed_fd]) for queue in queues]
        self._liveness = liveness
        self._pending: deque[PendingAnswers[Any]] = deque()

    def expect(self, finish: Callable[[list[Answer]], _T], *, is_step: bool) -> PendingAnswers[_T]:
        """The answers to the command that was sent last."""
        pending = PendingAnswers(self, len(self._readers), finish, is_step=is_step)
        self._pending.append(pending)
        return pending

    def take_what_is_there(self) -> None:
        """So that no worker waits for room for an answer while this process waits for room for a command."""
        for pending in self._pending:
            if self._take(pending):
                return

    def receive(self, wanted: PendingAnswers[Any], *, wait: bool) -> None:
        """Complete what is pending, oldest first, up to ``wanted``; without ``wait`` as far as answers are there."""
        while not wanted.completed:
            oldest = self._pending[0]
            try:
                if wait:
                    self._wait_for(oldest)
                elif self._take(oldest):
                    self._liveness.check()
                    return
                self._complete(oldest)
            except EngineDeadError as error:
                oldest.set_exception(error)
            self._pending.popleft()

    def close(self) -> None:
        """Nothing comes any more."""
        for pending in self._pending:
            pending.set_exception(EngineDeadError(self._liveness.reason or "the executor has been shut down"))
        self._pending.clear()
        for reader in self._readers:
            reader.close()

    def _take(self, pending: PendingAnswers[Any]) -> list[int]:
        """Take answers that are there; the ranks that are still missing."""
        for rank in pending.missing():
            if self._readers[rank].ready():
                pending.answers[rank] = self._readers[rank].receive()
        return pending.missing()

    def _wait_for(self, pending: PendingAnswers[Any]) -> None:
        deadline = None
        spin_until = time.monotonic() + SPIN_S
        while missing := self._take(pending):
            if deadline is None and pending.is_step and pending.failures():
                deadline = time.monotonic() + self._straggler_s
            if deadline is not None and time.monotonic() >= deadline:
                self._give_up(pending, missing)
            if time.monotonic() >= spin_until:
                self._sleep(missing, deadline)

    def _sleep(self, missing: Sequence[int], deadline: float | None) -> None:
        poll = select.poll()
        failed_fd = self._liveness.failed_fd
        for fd in (failed_fd, *(self._filled[rank] for rank in missing)):
            poll.register(fd, select.POLLIN)
        left_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        if {fd for fd, _ in poll.poll(left_ms)} == {failed_fd}:
            self._liveness.check()

    def _complete(self, pending: PendingAnswers[Any]) -> None:
        failures = pending.failures()
        dead = next((error for error in failures.values() if isinstance(error, EngineDeadError)), None)
        if dead is not None:
            poll = select.poll()
            poll.register(self._liveness.failed_fd, select.POLLIN)
            poll.poll(_LAST_WORDS_S * 1000)
            self._liveness.fail(str(dead))
            self._liveness.check()
        pending.complete()

    def _give_up(self, pending: PendingAnswers[Any], missing: Sequence[int]) -> None:
        told = "; ".join(map(str, pending.failures().values()))
        others = ", ".join(map(str, missing))
        self._liveness.fail(
            f"a step failed ({told}), and workers that may wait for that rank didn't finish it: {others}"
        )
        self._liveness.check()
