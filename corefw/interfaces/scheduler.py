"""Scheduler and its strategies: who computes how many tokens in the next step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from corefw.errors import ConfigError

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.interfaces.kv_cache import KVCacheSpec
    from corefw.messages.kv_events import KVEventBatch
    from corefw.messages.outputs import EngineCoreOutput, FinishReason, ModelRunnerOutput, SchedulerStats
    from corefw.messages.request import EngineCoreRequest, PlainDict
    from corefw.messages.scheduling import SchedulerOutput
    from corefw.plugin_system.manager import PluginManager

__all__ = [
    "Admission",
    "ChunkBudget",
    "QueueOrder",
    "RequestView",
    "Scheduler",
    "SchedulerStrategy",
    "SchedulingDecision",
    "VictimChoice",
]


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


class SchedulingDecision(ABC):
    """What all strategies are (group ``corefw.scheduler_strategies``): one or several of the four decisions below.

    A class that derives from one decision replaces that one alone (``--scheduling-order``, ``--scheduling-victim``,
    ``--scheduling-admission``, ``--scheduling-chunks``); with ``--scheduling-policy`` it makes all that it can, and the
    default makes the rest: first come, first served. It is made without arguments, once, in the engine core, and used
    by one thread; none of it may block. A decision that raises or makes no sense falls back to the default's, and
    isn't asked any more after three in a row.
    """

    name: ClassVar[str]
    api_version: ClassVar[int] = 1


class QueueOrder(SchedulingDecision):
    """Who goes first."""

    @abstractmethod
    def queue_key(self, request: RequestView) -> tuple[float, ...]:
        """Waiting requests are admitted in rising order of this; equal keys keep the order of entry.

        Asked when a request enters the queue or comes back to it. No part may be NaN.
        """


class VictimChoice(SchedulingDecision):
    """Who gives way."""

    @abstractmethod
    def victim(self, running: Sequence[RequestView]) -> int:
        """Index of the request to preempt when blocks run out.

        Args:
            running: at least two, in the order of their admission.
        """


class Admission(SchedulingDecision):
    """Who may begin."""

    @abstractmethod
    def may_admit(self, request: RequestView, num_running: int) -> str | None:
        """None to admit now, else why the request has to wait (admission stops for this step).

        Asked in each step for the first of the queue, as long as there is room for it.
        """


class ChunkBudget(SchedulingDecision):
    """How much of a prompt a step computes."""

    @abstractmethod
    def chunk_tokens(self, request: RequestView, num_new_tokens: int, token_budget: int) -> int:
        """Tokens to give the request in this step, at least 1; more than ``num_new_tokens`` or ``token_budget`` is cut.

        Not asked where one token is due, or where prompts aren't cut (``--no-enable-chunked-prefill``).
        """


class SchedulerStrategy(QueueOrder, VictimChoice, Admission, ChunkBudget):
    """All four decisions: order and victim are its own, the others the default's unless it overrides them."""

    def may_admit(self, request: RequestView, num_running: int) -> str | None:
        """Always."""
        del request, num_running
        return None

    def chunk_tokens(self, request: RequestView, num_new_tokens: int, token_budget: int) -> int:
        """As many as there are and the step has room for."""
        del request
        return min(num_new_tokens, token_budget)


class Scheduler(ABC):
    """Decides each step (group ``corefw.schedulers``). Used by one thread; knows no tensors.

    One whose class sets ``schedules_ahead`` is asked for up to ``config.max_batches_in_flight`` steps before the first
    of them is done; ``update`` and ``fail_step`` then come in the order of the steps.
    """

    name: ClassVar[str]
    api_version: ClassVar[int] = 1
    schedules_ahead: ClassVar[bool] = False

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

    def receive_handshakes(self, handshakes: Sequence[PlainDict | None]) -> None:
        """Take what the workers' halves of the KV connector say at the start, in rank order; only with a connector.

        Raises:
            ConfigError: this scheduler serves no connector (the default).
        """
        del handshakes
        raise ConfigError(f"scheduler {self.name!r} serves no KV connector; leave out --kv-connector, or take another")

    def shutdown(self) -> None:
        """Stop what runs beside the steps. May be called twice."""

    def take_kv_events(self) -> KVEventBatch | None:
        """What the prefix cache did since the last call; None where that isn't recorded."""
        return None
