"""What observers are told of requests, over an executor without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from corefw.engine.life_cycle import LifeCycle
from corefw.engine.llm_engine import LLMEngine
from corefw.errors import EngineDeadError
from corefw.interfaces.hooks.lifecycle import CoreObserver, CoreRequest, TokenSpan, corefw_core_observer
from corefw.messages.outputs import FinishReason
from corefw.messages.scheduling import CachedRequests, SchedulerOutput
from corefw.plugin_system.contributions import MAX_FAILURES, Contribution
from corefw.plugin_system.manager import PluginManager
from corefw.plugin_system.observers import ObserverCalls
from corefw.testing.configs import fake_config
from tests.engine.fake_engine import request


class Teller(CoreObserver[list[str]]):
    """Keeps what it is told; the context is the request's own list."""

    def __init__(self) -> None:
        self.stories: dict[str, list[str]] = {}

    def make_context(self, request: CoreRequest) -> list[str]:
        if request.request_id.startswith("bad"):
            raise ValueError("told to fail")
        return self.stories.setdefault(f"{request.request_id}{len(self.stories)}", [])

    def added(self, request: CoreRequest, context: list[str] | None) -> None:
        self._tell(context, f"added {request.extension}")

    def scheduled(self, request: CoreRequest, context: list[str] | None, span: TokenSpan) -> None:
        self._tell(context, f"scheduled {span.start}-{span.stop}")

    def sampled(self, request: CoreRequest, context: list[str] | None, token_ids: Sequence[int]) -> None:
        assert request.output_ids[-len(token_ids) :] == tuple(token_ids)
        self._tell(context, "sampled")

    def preempted(self, request: CoreRequest, context: list[str] | None) -> None:
        self._tell(context, "preempted")

    def resumed(self, request: CoreRequest, context: list[str] | None) -> None:
        self._tell(context, "resumed")

    def finished(
        self, request: CoreRequest, context: list[str] | None, reason: FinishReason, error: str | None
    ) -> None:
        self._tell(context, f"finished {reason.value} {error}")

    def aborted(self, request: CoreRequest, context: list[str] | None) -> None:
        self._tell(context, "aborted")

    def closed(self, request: CoreRequest, context: list[str] | None) -> None:
        self._tell(context, "closed")

    def _tell(self, context: list[str] | None, what: str) -> None:
        assert context is not None
        context.append(what)


def watched(observer: CoreObserver[Any], **overrides: Any) -> LLMEngine:
    """An engine that a plugin ``mine`` observes."""
    engine = LLMEngine(fake_config(**overrides), PluginManager.discover(""))
    contribution = Contribution("mine", "my-dist", corefw_core_observer.__name__, observer)
    engine.core._life_cycle = LifeCycle([ObserverCalls(contribution, CoreObserver)])
    return engine


def play(engine: LLMEngine) -> None:
    while engine.has_work():
        engine.step()


def test_an_engine_without_observers_has_no_life_cycle() -> None:
    assert LLMEngine(fake_config(), PluginManager.discover("")).core._life_cycle is None


def test_every_step_of_a_request_is_told_in_order() -> None:
    observer = Teller()
    engine = watched(observer, max_num_batched_tokens=4)
    engine.add_request(request("a", 2, prompt_ids=[1, 2, 3, 4, 5, 6], mine={"x": 1}))
    play(engine)
    assert observer.stories["a0"] == [
        "added {'x': 1}", "scheduled 0-4", "scheduled 4-6", "sampled", "scheduled 6-7", "sampled",
        "finished length None", "closed",
    ]  # fmt: skip


def test_a_request_that_is_aborted_failed_or_loses_its_step_is_closed_once() -> None:
    observer = Teller()
    engine = watched(observer)
    engine.add_request(request("gone"))
    engine.add_request(request("failed", fail_at=0))
    engine.step()
    engine.abort(["gone", "never there"])
    engine.add_request(request("raised", raise_at=0))
    play(engine)
    ends = {story[-2] for story in observer.stories.values()}
    assert {end.split(" ")[0] for end in ends} == {"aborted", "finished"}
    assert "finished error told to fail" in ends
    assert [story.count("closed") for story in observer.stories.values()] == [1, 1, 1]


def test_a_request_that_is_refused_is_not_told_nor_ends_the_one_whose_id_it_took() -> None:
    observer = Teller()
    engine = watched(observer)
    engine.add_request(request("a"))
    engine.add_request(request("a"))
    play(engine)
    assert len(observer.stories) == 1
    assert observer.stories["a0"].count("sampled") == 5


def test_what_an_observer_gets_is_not_what_the_client_gets() -> None:
    seen: list[Sequence[int]] = []

    class Keeper(CoreObserver[None]):
        def sampled(self, request: CoreRequest, context: None, token_ids: Sequence[int]) -> None:
            seen.append(token_ids)

    engine = watched(Keeper())
    engine.add_request(request("a"))
    play(engine)
    assert [type(token_ids) for token_ids in seen] == [tuple] * 5


def test_a_request_that_starts_over_without_a_word_of_the_scheduler_was_preempted() -> None:
    observer = Teller()
    life_cycle = LifeCycle([ObserverCalls(Contribution("mine", "my-dist", "hook", observer), CoreObserver)])
    life_cycle.added(request("a"))
    for start, num_tokens in ((8, 2), (0, 10), (10, 1)):
        life_cycle.scheduled(
            SchedulerOutput(
                step=1,
                new_requests=[],
                cached_requests=CachedRequests(
                    request_ids=["a"], num_computed_tokens=[start], num_output_tokens=[0], new_block_ids=[[[]]]
                ),
                num_scheduled_tokens={"a": num_tokens},
                total_num_scheduled_tokens=num_tokens,
                finished_request_ids=[],
                preempted_request_ids=[],
                block_ids_to_zero=[[]],
            )
        )
    assert observer.stories["a0"][1:] == [
        "scheduled 8-10", "preempted", "resumed", "scheduled 0-10", "scheduled 10-11",
    ]  # fmt: skip


def test_an_id_may_come_again() -> None:
    observer = Teller()
    engine = watched(observer)
    for _ in range(2):
        engine.add_request(request("a"))
        play(engine)
    assert [story[-1] for story in observer.stories.values()] == ["closed", "closed"]


@pytest.mark.parametrize("dies", [False, True])
def test_contexts_are_closed_when_the_engine_stops_or_dies(dies: bool) -> None:
    observer = Teller()
    engine = watched(observer)
    engine.add_request(request("a", **({"dead_at": 1} if dies else {})))
    engine.step()
    if dies:
        with pytest.raises(EngineDeadError):
            play(engine)
    engine.shutdown()
    engine.shutdown()
    assert observer.stories["a0"][-2:] == ["aborted", "closed"]
    assert observer.stories["a0"].count("closed") == 1


def test_a_context_that_cannot_be_made_costs_its_request_nothing() -> None:
    observer = Teller()
    engine = watched(observer)
    engine.add_request(request("bad"))
    engine.add_request(request("good"))
    play(engine)
    assert list(observer.stories) == ["good0"]


class Failing(CoreObserver[None]):
    num_calls = 0

    def scheduled(self, request: CoreRequest, context: None, span: TokenSpan) -> None:
        self.num_calls += 1
        raise ValueError("told to fail")

    def sampled(self, request: CoreRequest, context: None, token_ids: Sequence[int]) -> None:
        """Works."""


def test_an_observer_that_fails_stops_no_request_and_is_quarantined() -> None:
    observer = Failing()
    engine = watched(observer)
    engine.add_request(request("a", 8))
    outputs = []
    while engine.has_work():
        outputs += engine.step()
    assert sum(len(output.new_token_ids) for output in outputs) == 8
    assert observer.num_calls == MAX_FAILURES, "what works in between doesn't make up for it"
