"""Scheduler and its strategies: who computes how many tokens in the next step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.interfaces.kv_cache import KVCacheSpec
    from corefw.messages.kv_events import KVEventBatch
    from corefw.messages.outputs import EngineCoreOutput, FinishReason, ModelRunnerOutput, SchedulerStats
    from corefw.messages.request import EngineCoreRequest
    from corefw.messages.scheduling import SchedulerOutput
    from corefw.plugin_system.manager import PluginManager

__all__ = ["RequestView", "Scheduler", "SchedulerStrategy"]


class RequestView(Protocol):
    """What a strategy may read of a request."""

    @property
    def request_id(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def arrival_s(self) -> float: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_computed_tokens(self) -> int: ...


class SchedulerStrategy(ABC):
    """Policy as plain decisions (group ``corefw.scheduler_strategies``); the default is first come, first served."""

    name: ClassVar[str]
    api_version: ClassVar[int] = 1

    @abstractmethod
    def queue_key(self, request: RequestView) -> tuple[float, ...]:
        """Waiting requests are admitted in rising order of this. Constant while a request waits."""

    @abstractmethod
    def victim(self, running: Sequence[RequestView]) -> int:
        """Index of the request to preempt when blocks run out; ``running`` is never empty."""

    def may_admit(self, request: RequestView, num_running: int) -> str | None:
        """None to admit now, else why the request has to wait (admission stops for this step)."""
        del request, num_running
        return None

    def chunk_tokens(self, request: RequestView, num_new_tokens: int, token_budget: int) -> int:
        """Tokens to give the request in this step, at most ``num_new_tokens`` and ``token_budget``, at least 1."""
        del request
        return min(num_new_tokens, token_budget)


class Scheduler(ABC):
    """Decides each step (group ``corefw.schedulers``). Used by one thread; knows no tensors."""

    name: ClassVar[str]
    api_version: ClassVar[int] = 1

    @abstractmethod
    def __init__(
        self,
        config: EngineConfig,
        plan: RuntimePlan,
        group_specs: Sequence[KVCacheSpec],
        plugins: PluginManager,
    ) -> None:
        """``group_specs`` has one spec a KV-cache group, in the order of ``plan.layer_groups``."""

    @abstractmethod
    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a request. Raises RequestError when it can never run here (the id is then unknown)."""

    @abstractmethod
    def finish_requests(self, request_ids: Sequence[str], reason: FinishReason) -> list[EngineCoreOutput]:
        """End requests from outside (abort); unknown ids are ignored. Returns their terminal outputs."""

    @abstractmethod
    def schedule(self) -> SchedulerOutput:
        """The next step; may be empty (``total_num_scheduled_tokens`` 0)."""

    @abstractmethod
    def update(self, scheduled: SchedulerOutput, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
        """Take a step's result: append tokens, check ends, free blocks. Requests gone meanwhile are ignored.

        Also returns terminal outputs that are due without a step (a request that was complete when it came, one that
        no cache could hold). So it is called after every ``schedule``, also an empty one, then with an empty result.
        """

    @abstractmethod
    def fail_step(self, scheduled: SchedulerOutput, error: str) -> list[EngineCoreOutput]:
        """A step raised: end its requests with that error."""

    @abstractmethod
    def has_work(self) -> bool:
        """Whether ``schedule`` and ``update`` could do something.

        That is also: tell the worker of finished requests, hand out an output that is due without a step.
        """

    @abstractmethod
    def stats(self) -> SchedulerStats:
        """Gauges and counters; cheap."""

    @abstractmethod
    def reset_prefix_cache(self) -> bool:
        """Forget cached blocks. False (and nothing done) while requests hold blocks."""

    def take_kv_events(self) -> KVEventBatch | None:
        """What the prefix cache did since the last call; None where that isn't recorded."""
        return None
