"""Conformance suites of schedulers and of the decisions that the core's scheduler leaves to strategies."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from corefw.engine.llm_engine import LLMEngine
from corefw.interfaces.scheduler import (
    Admission,
    ChunkBudget,
    QueueOrder,
    Scheduler,
    SchedulingDecision,
    VictimChoice,
)
from corefw.messages.outputs import FinishReason
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from corefw.plugin_system.manager import PluginManager
from corefw.testing.configs import fake_config
from corefw.testing.fake_executor import fake_tokens
from corefw.testing.registration import installed_as
from corefw.testing.suite import PluginSuite, check_reason

__all__ = ["SchedulerSuite", "SchedulingDecisionSuite"]

_MAX_STEPS = 5000
_DECISIONS = ((QueueOrder, "order"), (VictimChoice, "victim"), (Admission, "admission"), (ChunkBudget, "chunks"))


@dataclass(frozen=True, slots=True)
class _View:
    """A request as strategies see it."""

    request_id: str
    priority: int
    arrival_s: float
    num_tokens: int
    num_computed_tokens: int


class _EngineSuite(PluginSuite):
    """Runs an engine whose executor needs no model and checks what the scheduler tells it."""

    def settings(self) -> dict[str, Any]:
        """What chooses the plugin."""
        raise NotImplementedError

    def test_every_request_gets_its_tokens(self) -> None:
        self._check_run(_requests(20, seed=0))

    def test_requests_that_have_to_give_way_get_their_tokens(self) -> None:
        self._check_run(_requests(12, seed=1), num_gpu_blocks_override=40, max_num_seqs=8)

    def test_a_step_that_is_smaller_than_a_prompt_is_enough(self) -> None:
        self._check_run(_requests(8, seed=2), max_num_batched_tokens=16)

    def test_aborted_requests_end_once_and_hold_nothing(self) -> None:
        with self._engine() as engine:
            for request in _requests(6, seed=3):
                engine.add_request(request)
            engine.step()
            engine.abort(["r0", "r3", "unknown"])
            outputs = _drain(engine)
            ends = {i: o.finish_reason for o in outputs if o.finish_reason and (i := o.request_id)}
            assert set(ends) >= {f"r{index}" for index in range(6) if index not in (0, 3)}, "some never ended"
            _check_idle(engine)

    def _check_run(self, requests: list[EngineCoreRequest], **settings: Any) -> None:
        with self._engine(**settings) as engine:
            for request in requests:
                engine.add_request(request)
            outputs = _drain(engine)
            for request in requests:
                mine = [output for output in outputs if output.request_id == request.request_id]
                tokens = [token for output in mine for token in output.new_token_ids]
                wanted = fake_tokens(request.prompt_ids, int(request.params.max_tokens or 0))
                assert tokens == wanted, f"{request.request_id} got {len(tokens)} tokens, not its {len(wanted)}"
                reasons = [output.finish_reason for output in mine if output.finish_reason is not None]
                assert reasons == [FinishReason.LENGTH], f"{request.request_id} ended with {reasons}"
            _check_idle(engine)

    @contextmanager
    def _engine(self, **settings: Any) -> Iterator[LLMEngine]:
        with installed_as(self.group, self.name, self.plugin):
            plugins = PluginManager.discover(self.name)
            config = fake_config(resolved=plugins.resolved(), **{**self.settings(), **settings})
            engine = LLMEngine(config, plugins)
            try:
                yield engine
            finally:
                engine.shutdown()


class SchedulerSuite(_EngineSuite):
    """For ``corefw.schedulers``."""

    plugin: ClassVar[type[Scheduler]]
    group = "schedulers"

    def settings(self) -> dict[str, Any]:
        return {"scheduler": self.name}

    def test_a_request_that_can_never_run_is_refused(self) -> None:
        with self._engine(max_model_len=64) as engine:
            engine.add_request(_request("long", list(range(1, 200)), 4))
            ends = [output for output in _drain(engine) if output.finish_reason is not None]
            assert [(output.request_id, output.finish_reason) for output in ends] == [("long", FinishReason.ERROR)]
            _check_idle(engine)


class SchedulingDecisionSuite(_EngineSuite):
    """For ``corefw.scheduler_strategies``: each decision that the class makes."""

    plugin: ClassVar[type[SchedulingDecision]]
    group = "scheduler_strategies"

    def settings(self) -> dict[str, Any]:
        return {f"scheduling_{option}": self.name for kind, option in _DECISIONS if issubclass(self.plugin, kind)}

    def test_it_makes_a_decision(self) -> None:
        assert self.settings(), f"it derives from none of {', '.join(kind.__name__ for kind, _ in _DECISIONS)}"

    def test_its_keys_are_numbers_that_stay(self) -> None:
        strategy = self.plugin()
        if not isinstance(strategy, QueueOrder):
            return
        for view in _views(20, seed=0):
            key = strategy.queue_key(view)
            assert isinstance(key, tuple), f"queue_key() gave {type(key).__name__}, not a tuple"
            assert not any(math.isnan(part) for part in key), "queue_key() has a NaN"
            assert strategy.queue_key(view) == key, "queue_key() of one request changes"

    def test_its_victims_are_running(self) -> None:
        strategy = self.plugin()
        if not isinstance(strategy, VictimChoice):
            return
        for seed in range(20):
            running = _views(2 + seed % 5, seed)
            index = strategy.victim(running)
            assert isinstance(index, int), f"victim() gave {index!r}"
            assert 0 <= index < len(running), f"victim() gave {index} of {len(running)} requests"

    def test_it_admits_or_says_why_not(self) -> None:
        strategy = self.plugin()
        if not isinstance(strategy, Admission):
            return
        for view in _views(20, seed=1):
            check_reason(strategy.may_admit(view, 3), "may_admit()")
            assert strategy.may_admit(view, 0) is None, "with nothing running it must admit, or it waits for ever"

    def test_its_chunks_have_a_token_at_least(self) -> None:
        strategy = self.plugin()
        if not isinstance(strategy, ChunkBudget):
            return
        for view in _views(20, seed=2):
            chunk = strategy.chunk_tokens(view, 100, 64)
            assert isinstance(chunk, int), f"chunk_tokens() gave {chunk!r}"
            assert chunk >= 1, f"chunk_tokens() gave {chunk}"


def _request(request_id: str, prompt_ids: list[int], max_tokens: int, priority: int = 0) -> EngineCoreRequest:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, seed=0, ignore_eos=True)
    return EngineCoreRequest(request_id=request_id, prompt_ids=prompt_ids, params=params, priority=priority)


def _requests(count: int, seed: int) -> list[EngineCoreRequest]:
    chance = random.Random(seed)
    return [
        _request(
            f"r{index}",
            [chance.randrange(1, 1000) for _ in range(chance.randrange(1, 60))],
            chance.randrange(1, 20),
            chance.randrange(-2, 3),
        )
        for index in range(count)
    ]


def _views(count: int, seed: int) -> list[_View]:
    chance = random.Random(seed)
    sizes = [chance.randrange(1, 500) for _ in range(count)]
    return [
        _View(f"r{index}", chance.randrange(-3, 4), 1000.0 + chance.random(), size, chance.randrange(size + 1))
        for index, size in enumerate(sizes)
    ]


def _drain(engine: LLMEngine) -> list[Any]:
    outputs: list[Any] = []
    for _ in range(_MAX_STEPS):
        if not engine.has_work():
            return outputs
        outputs += engine.step()
    raise AssertionError(f"the engine still has work after {_MAX_STEPS} steps")


def _check_idle(engine: LLMEngine) -> None:
    stats = engine.core.call("stats")
    left = {name: stats[name] for name in ("num_running", "num_waiting", "kv_usage") if stats[name]}
    assert not left, f"when all is over there is still {left}"
