"""What plugins observe of requests in the core, told from the messages that pass: so it holds for every scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from corefw.interfaces.hooks.lifecycle import CoreObserver, TokenSpan, corefw_core_observer
from corefw.messages.outputs import EngineCoreOutput, FinishReason
from corefw.plugin_system.observers import ObserverCalls

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.messages.request import EngineCoreRequest, PlainDict
    from corefw.messages.sampling import SamplingParams
    from corefw.messages.scheduling import SchedulerOutput
    from corefw.plugin_system.manager import PluginManager

__all__ = ["LifeCycle"]


class LifeCycle:
    """Tells observers, and keeps their contexts. Used by the core's thread."""

    def __init__(self, observers: Sequence[ObserverCalls[CoreObserver[Any]]]) -> None:
        self._observers = tuple(observers)
        self._requests: dict[str, _Observed] = {}

    @classmethod
    def collect(cls, config: EngineConfig, plugins: PluginManager) -> LifeCycle | None:
        """None where no plugin observes."""
        found = plugins.collect(CoreObserver, corefw_core_observer, config)
        return cls([ObserverCalls(one, CoreObserver, plugins.guard) for one in found]) if found else None

    def added(self, request: EngineCoreRequest) -> None:
        """The scheduler took a request."""
        observed = self._requests[request.request_id] = _Observed(request, self._observers)
        observed.tell("added")

    def scheduled(self, step: SchedulerOutput) -> None:
        """A step was put together."""
        for request_id in step.preempted_request_ids:
            if observed := self._requests.get(request_id):
                observed.preempt()
        starts = {new.request_id: new.num_computed_tokens for new in step.new_requests}
        cached = step.cached_requests
        starts.update(zip(cached.request_ids, cached.num_computed_tokens, strict=True))
        for request_id, num_tokens in step.num_scheduled_tokens.items():
            if observed := self._requests.get(request_id):
                observed.schedule(TokenSpan(starts[request_id], starts[request_id] + num_tokens))

    def ended_or_grew(self, outputs: Sequence[EngineCoreOutput]) -> None:
        """News of the scheduler, on their way out."""
        for output in outputs:
            if observed := self._requests.get(output.request_id):
                observed.take(output)
                if output.finish_reason is not None:
                    del self._requests[output.request_id]

    def close(self) -> None:
        """The engine stops: whatever still runs is aborted. May be called twice."""
        left, self._requests = self._requests, {}
        for request_id, observed in left.items():
            observed.take(EngineCoreOutput(request_id=request_id, finish_reason=FinishReason.ABORT))


class _Observed:
    """A request, with what each observer keeps of it."""

    def __init__(self, request: EngineCoreRequest, observers: Sequence[ObserverCalls[CoreObserver[Any]]]) -> None:
        self.request = request
        self.output_ids = list(request.prior_output_ids)
        self.num_preemptions = 0
        self._is_preempted = False
        self._stop = 0
        self._told: list[tuple[ObserverCalls[CoreObserver[Any]], _View, Any]] = []
        for observer in observers:
            view = _View(self, observer.plugin)
            made = _made_context(observer, view)
            if made is not None:
                self._told.append((observer, view, made[0]))

    def tell(self, event: str, *details: object) -> None:
        for observer, view, context in self._told:
            observer.run(event, view, context, *details)

    def preempt(self) -> None:
        self.num_preemptions += 1
        self._is_preempted = True
        self._stop = 0
        self.tell("preempted")

    def schedule(self, span: TokenSpan) -> None:
        if span.start < self._stop:  # what it had was lost, as when a load failed
            self.preempt()
        self._stop = span.stop
        if self._is_preempted:
            self._is_preempted = False
            self.tell("resumed")
        self.tell("scheduled", span)

    def take(self, output: EngineCoreOutput) -> None:
        token_ids, reason = output.new_token_ids, output.finish_reason
        if token_ids:
            self.output_ids += token_ids
            self.tell("sampled", tuple(token_ids))
        if reason is None:
            return
        if reason is FinishReason.ABORT:
            self.tell("aborted")
        else:
            self.tell("finished", reason, output.error)
        self.tell("closed")


def _made_context(observer: ObserverCalls[CoreObserver[Any]], view: _View) -> tuple[Any] | None:
    """In a tuple, since an observer may want to keep nothing; None where it failed."""
    if not observer.has("make_context"):
        return (None,)
    return observer.run_as("make_context", lambda: (observer.value.make_context(view),))


class _View:
    """What one plugin may read of a request."""

    __slots__ = ("_observed", "_plugin")

    def __init__(self, observed: _Observed, plugin: str) -> None:
        self._observed = observed
        self._plugin = plugin

    @property
    def request_id(self) -> str:
        return self._observed.request.request_id

    @property
    def prompt_ids(self) -> Sequence[int]:
        return tuple(self._observed.request.prompt_ids)

    @property
    def output_ids(self) -> Sequence[int]:
        return tuple(self._observed.output_ids)

    @property
    def params(self) -> SamplingParams:
        return self._observed.request.params

    @property
    def priority(self) -> int:
        return self._observed.request.priority

    @property
    def arrival_s(self) -> float:
        return self._observed.request.arrival_s

    @property
    def num_preemptions(self) -> int:
        return self._observed.num_preemptions

    @property
    def extension(self) -> PlainDict | None:
        return self._observed.request.extra.get(self._plugin)
