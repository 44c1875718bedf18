"""An engine that "generates" given token ids: stands where ``AsyncEngine`` stands, for tests of what lies above it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from corefw.config.runtime_plan import RuntimePlan
from corefw.engine.event_subscription import EventSubscription
from corefw.errors import EngineDeadError
from corefw.messages.arrays import Array
from corefw.messages.outputs import EngineCoreOutput, FinishReason, PositionLogprobs, PromptLogprobs, SchedulerStats

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.messages.request import EngineCoreRequest

__all__ = ["ScriptedEngine", "ScriptedFailure", "ScriptedStream"]

Script = Sequence[int] | Callable[["EngineCoreRequest"], Sequence[int]]
LogprobsOf = Callable[[int, int], PositionLogprobs]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptedFailure:
    """What goes wrong, and when.

    Attributes:
        after_tokens: output tokens that are delivered before.
        message: the error's text.
        dead: the whole engine dies; else the request alone ends with ``FinishReason.ERROR``.
    """

    after_tokens: int = 0
    message: str = "scripted failure"
    dead: bool = False


class ScriptedEngine:
    """Plays a script of token ids to each request, with the ends that the real core would apply.

    Args:
        script: token ids, or a function from the request to them. A script that runs out ends its request with
            ``FinishReason.STOP``, as an end token would.
        tokens_per_output: how many tokens one output carries at most.
        delay_s: wait before each output.
        failure: goes wrong in every request.
        logprobs: (token id, number of most likely ones) → entry; default: the token at -0.5 as the most likely one,
            then the ids that follow it.
        num_cached_tokens: told with the first output.
        config, plan: what ``.config`` and ``.plan`` give; without a plan one of ``max_model_len`` is made.

    Attributes:
        requests: every request, in the order of submission.
        aborted: ids of requests that were aborted while they ran.
        calls: (method, arguments) of every ``call``.
        subscriptions: who reads events, by ``subscribe``.
        call_results: answers of ``call`` by method; None for others.
        death: set by ``die``.
        trouble: why it can't be relied on at the moment, as a test likes it.
    """

    def __init__(
        self,
        script: Script,
        *,
        tokens_per_output: int = 1,
        delay_s: float = 0.0,
        failure: ScriptedFailure | None = None,
        logprobs: LogprobsOf | None = None,
        num_cached_tokens: int = 0,
        config: EngineConfig | None = None,
        plan: RuntimePlan | None = None,
        max_model_len: int = 2048,
    ) -> None:
        self._script = script
        self.tokens_per_output = tokens_per_output
        self.delay_s = delay_s
        self.failure = failure
        self.logprobs = logprobs or _even_logprobs
        self.num_cached_tokens = num_cached_tokens
        self._config = config
        self.plan = plan or _plan(max_model_len)
        self.death: EngineDeadError | None = None
        self.trouble: str | None = None
        self.requests: list[EngineCoreRequest] = []
        self.aborted: list[str] = []
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.subscriptions: list[EventSubscription] = []
        self.call_results: dict[str, Any] = {}
        self.running: dict[str, ScriptedStream] = {}
        self.num_generated_tokens = 0

    @property
    def config(self) -> EngineConfig:
        """The configuration given at construction."""
        assert self._config is not None, "this ScriptedEngine was made without a config"
        return self._config

    @property
    def stats(self) -> SchedulerStats:
        """Running requests and generated tokens; all else is zero."""
        return SchedulerStats(num_running=len(self.running), num_generation_tokens=self.num_generated_tokens)

    def submit(self, request: EngineCoreRequest) -> ScriptedStream:
        """Start a request; its outputs come from the returned stream."""
        self.requests.append(request)
        tokens = self._script(request) if callable(self._script) else self._script
        stream = ScriptedStream(self, request, list(tokens))
        self.running[request.request_id] = stream
        return stream

    def die(self, message: str = "the engine core died") -> None:
        """Make every running and later stream raise ``EngineDeadError``."""
        self.death = EngineDeadError(message)
        for stream in tuple(self.running.values()):
            stream.wake()

    async def call(self, method: str, *args: Any) -> Any:
        """Record a remote call and answer it from ``call_results``."""
        if self.death is not None:
            raise self.death
        self.calls.append((method, args))
        return self.call_results.get(method)

    async def call_plugin(self, name: str, *args: Any, timeout_s: float = 30.0) -> Any:
        """Record a call of a plugin's function and answer it from ``call_results``."""
        del timeout_s
        return await self.call(name, *args)

    def subscribe(self, *topics: str) -> EventSubscription:
        """Events of plugins; a test puts them into ``subscriptions``."""
        subscription = EventSubscription(topics, self.subscriptions.remove)
        self.subscriptions.append(subscription)
        return subscription

    async def shutdown(self, drain_s: float = 0.0) -> None:
        """Abort what still runs."""
        del drain_s
        for stream in tuple(self.running.values()):
            stream.abort()


class ScriptedStream:
    """Async iterator of one request's outputs; the last one has a finish reason."""

    def __init__(self, engine: ScriptedEngine, request: EngineCoreRequest, script: list[int]) -> None:
        self.request_id = request.request_id
        self._engine = engine
        self._request = request
        self._script = script
        self._position = 0
        self._num_prior = len(request.prior_output_ids)
        self._aborted = False
        self._finished = False
        self._woken = asyncio.Event()

    def abort(self) -> None:
        """End the request; idempotent, and without effect on a finished one."""
        if self._finished or self._aborted:
            return
        self._aborted = True
        self._engine.aborted.append(self.request_id)
        self._engine.running.pop(self.request_id, None)
        self.wake()

    def wake(self) -> None:
        """Interrupt the delay."""
        self._woken.set()

    def __aiter__(self) -> ScriptedStream:
        return self

    async def __anext__(self) -> EngineCoreOutput:
        if self._finished:
            raise StopAsyncIteration
        await self._pause()
        if self._engine.death is not None:
            self._finish()
            raise self._engine.death
        output = self._next_output()
        if output.finish_reason is not None:
            self._finish()
        return output

    async def _pause(self) -> None:
        if self._engine.delay_s == 0:
            await asyncio.sleep(0)
            return
        try:
            await asyncio.wait_for(self._woken.wait(), self._engine.delay_s)
        except TimeoutError:
            return

    def _finish(self) -> None:
        self._finished = True
        self._engine.running.pop(self.request_id, None)

    def _next_output(self) -> EngineCoreOutput:
        if self._aborted:
            return EngineCoreOutput(request_id=self.request_id, finish_reason=FinishReason.ABORT)
        first = self._position == 0
        tokens, reason, stop_reason, error = self._next_tokens()
        self._engine.num_generated_tokens += len(tokens)
        num_logprobs = self._request.params.logprobs
        return EngineCoreOutput(
            request_id=self.request_id,
            new_token_ids=tokens,
            logprobs=None if num_logprobs is None else [self._engine.logprobs(t, num_logprobs) for t in tokens],
            prompt_logprobs=self._prompt_logprobs() if first and not self._num_prior else None,
            finish_reason=reason,
            stop_reason=stop_reason,
            num_cached_tokens=self._engine.num_cached_tokens if first else None,
            error=error,
        )

    def _prompt_logprobs(self) -> PromptLogprobs | None:
        wanted = self._request.params.prompt_logprobs
        if wanted is None:
            return None
        entries = [self._engine.logprobs(token_id, wanted) for token_id in self._request.prompt_ids[1:]]
        shape = (len(entries), 1 + wanted)
        return PromptLogprobs(
            token_ids=Array.from_numpy(np.array([e.token_ids for e in entries], np.int32).reshape(shape)),
            logprobs=Array.from_numpy(np.array([e.logprobs for e in entries], np.float32).reshape(shape)),
            ranks=Array.from_numpy(np.array([e.rank for e in entries], np.int32)),
        )

    def _next_tokens(self) -> tuple[list[int], FinishReason | None, int | None, str | None]:
        tokens: list[int] = []
        if self._request.params.max_tokens == 0:
            return tokens, FinishReason.LENGTH, None, None
        while len(tokens) < self._engine.tokens_per_output:
            failure = self._engine.failure
            if failure is not None and self._position >= failure.after_tokens:
                if tokens:
                    return tokens, None, None, None
                return tokens, *self._fail(failure)
            if self._position == len(self._script):
                return tokens, FinishReason.STOP, None, None
            token = self._script[self._position]
            self._position += 1
            tokens.append(token)
            reason, stop_reason = self._end_after(token)
            if reason is not None:
                return tokens, reason, stop_reason, None
        return tokens, None, None, None

    def _fail(self, failure: ScriptedFailure) -> tuple[FinishReason, None, str]:
        if failure.dead:
            self._engine.die(failure.message)
            self._finish()
            assert self._engine.death is not None
            raise self._engine.death
        return FinishReason.ERROR, None, failure.message

    def _end_after(self, token: int) -> tuple[FinishReason | None, int | None]:
        """The real core's order: end token, stop token, then the limits."""
        params = self._request.params
        num_outputs = self._num_prior + self._position
        if num_outputs >= params.min_tokens:
            if not params.ignore_eos and token in self._request.eos_ids:
                return FinishReason.STOP, None
            if token in params.stop_token_ids:
                return FinishReason.STOP, token
        at_limit = params.max_tokens is not None and num_outputs >= params.max_tokens
        at_context_end = len(self._request.prompt_ids) + num_outputs >= self._engine.plan.max_model_len
        return (FinishReason.LENGTH, None) if at_limit or at_context_end else (None, None)


def _even_logprobs(token_id: int, num_top: int) -> PositionLogprobs:
    top = [token_id + i for i in range(num_top)]
    return PositionLogprobs([token_id, *top], [-0.5, *(-0.5 - i for i in range(num_top))], 1)


def _plan(max_model_len: int) -> RuntimePlan:
    return RuntimePlan(
        num_blocks=1 + -(-max_model_len // 16),
        block_size=16,
        max_model_len=max_model_len,
        kv_cache_bytes=0,
        attention_backend="none",
        layer_groups=(),
    )
