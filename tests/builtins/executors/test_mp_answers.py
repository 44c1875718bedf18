from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from corefw.builtins.executors.mp_answers import AnswerBox, Liveness, PendingAnswers
from corefw.errors import EngineDeadError, EngineError, RequestError
from corefw.messages.codec import Codec
from corefw.runtime.distributed.broadcast_queue import BroadcastWriter, QueueFds
from corefw.runtime.distributed.worker_messages import Answer, Failure


class _Ranks:
    """What workers would write."""

    def __init__(self, num_ranks: int = 2) -> None:
        self.told: list[str] = []
        self.failed_fd = os.eventfd(0)
        self.liveness = Liveness(self.failed_fd, self._failed)
        self.queues = [QueueFds.create(1) for _ in range(num_ranks)]
        self.writers = [BroadcastWriter(queue) for queue in self.queues]
        self.box = AnswerBox(self.queues, Codec(Answer).decode, self.liveness, straggler_s=0.1)

    def _failed(self, reason: str) -> None:
        self.told.append(reason)
        os.eventfd_write(self.failed_fd, 1)

    def answer(self, rank: int, answer: Answer) -> None:
        self.writers[rank].send(Codec(Answer).encode(answer))

    def expect(self, *, is_step: bool = True) -> PendingAnswers[list[object]]:
        return self.box.expect(lambda answers: [answer.value for answer in answers], is_step=is_step)

    def close(self) -> None:
        self.box.close()
        for end in (*self.writers, *self.queues):
            end.close()
        os.close(self.failed_fd)


@pytest.fixture
def ranks() -> Iterator[_Ranks]:
    made = _Ranks()
    yield made
    made.close()


def _failure(kind: str, message: str = "lost") -> Answer:
    return Answer(failure=Failure(kind=kind, message=message))


def test_a_future_is_done_when_all_ranks_have_answered_and_older_ones_are_then_too(ranks: _Ranks) -> None:
    first, second = ranks.expect(), ranks.expect()
    ranks.answer(0, Answer(value=1))
    ranks.answer(0, Answer(value=2))
    assert not first.done()
    ranks.answer(1, Answer(value=3))
    assert not second.done()
    ranks.answer(1, Answer(value=4))
    assert second.result() == [2, 4]
    assert first.result() == [1, 3]


def test_who_waits_is_woken_by_the_last_answer(ranks: _Ranks) -> None:
    pending = ranks.expect()
    ranks.answer(1, Answer(value="b"))
    threading.Timer(0.05, ranks.answer, (0, Answer(value="a"))).start()
    assert pending.result() == ["a", "b"]


def test_a_failure_of_one_rank_is_the_answer_once_the_others_have_answered(ranks: _Ranks) -> None:
    pending, following = ranks.expect(), ranks.expect()
    ranks.answer(0, Answer())
    ranks.answer(1, _failure("engine"))
    assert str(pending.exception()) == "worker 1: lost"
    for rank in range(2):
        ranks.answer(rank, Answer(value=rank))
    assert following.result() == [0, 1]
    assert ranks.told == []


@pytest.mark.parametrize(("kind", "expected"), [("request", RequestError), ("engine", EngineError)])
def test_an_error_comes_back_as_what_it_was(ranks: _Ranks, kind: str, expected: type[Exception]) -> None:
    pending = ranks.expect()
    for rank in range(2):
        ranks.answer(rank, _failure(kind))
    assert type(pending.exception()) is expected


def test_what_was_no_error_of_ours_is_not_told_as_one(ranks: _Ranks) -> None:
    pending = ranks.expect()
    for rank in range(2):
        ranks.answer(rank, Answer(failure=Failure.from_exception(ZeroDivisionError("secret"))))
    assert type(pending.exception()) is RuntimeError


def test_ranks_that_wait_for_one_that_failed_in_a_step_are_given_up(ranks: _Ranks) -> None:
    pending = ranks.expect()
    ranks.answer(1, _failure("engine"))
    with pytest.raises(EngineDeadError, match=r"worker 1: lost.*didn't finish it: 0"):
        pending.result()
    assert len(ranks.told) == 1


def test_a_call_that_takes_one_rank_longer_than_another_ones_failure_is_waited_for(ranks: _Ranks) -> None:
    pending = ranks.expect(is_step=False)
    ranks.answer(1, _failure("request"))
    threading.Timer(0.4, ranks.answer, (0, Answer())).start()
    assert isinstance(pending.exception(), RequestError)
    assert ranks.told == []


def test_a_rank_that_lost_the_others_ends_all_and_the_death_is_the_reason(ranks: _Ranks) -> None:
    pending = ranks.expect()
    ranks.answer(0, _failure("dead", "rank 1 doesn't answer"))
    ranks.answer(1, Answer())
    threading.Timer(0.05, ranks.liveness.fail, ("worker 1 was killed",)).start()
    with pytest.raises(EngineDeadError, match=r"^worker 1 was killed$"):
        pending.result()


def test_answers_that_came_before_a_death_count(ranks: _Ranks) -> None:
    pending, following = ranks.expect(), ranks.expect()
    for rank in range(2):
        ranks.answer(rank, Answer(value=rank))
    ranks.liveness.fail("worker 1 was killed")
    assert pending.result() == [0, 1]
    assert isinstance(following.exception(), EngineDeadError)
    assert following.done()


def test_what_is_pending_at_the_end_fails(ranks: _Ranks) -> None:
    pending = ranks.expect()
    ranks.box.close()
    with pytest.raises(EngineDeadError, match="shut down"):
        pending.result()
