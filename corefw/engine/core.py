"""The engine core: scheduler and executor, joined by one visible loop step. Knows no tensors and no transport."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec

from corefw.engine.kv_cache.sizing import plan_runtime
from corefw.engine.life_cycle import LifeCycle
from corefw.engine.plugin_channel import PluginChannel
from corefw.errors import ConfigError, CorefwError, EngineDeadError, RequestError
from corefw.messages.outputs import EngineCoreOutput, EngineCoreOutputs, ErrorKind, FinishReason, ModelRunnerOutput
from corefw.messages.plain import valid_text
from corefw.observability.logging import get_logger, set_log_level
from corefw.plugin_system.class_by_name import class_by_name
from corefw.plugin_system.groups import Process
from corefw.plugin_system.process_report import describe
from corefw.plugin_system.settings import restore_settings
from corefw.plugin_system.starting import starting

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.engine.step_board import StepBoard
    from corefw.interfaces.executor import Executor
    from corefw.interfaces.kv_cache import KVCacheSpec
    from corefw.interfaces.scheduler import Scheduler
    from corefw.messages.request import EngineCoreRequest
    from corefw.messages.scheduling import SchedulerOutput
    from corefw.plugin_system.manager import PluginManager

__all__ = ["EngineCore"]

_STEP_FAILED = "the engine failed to compute this request; the reason is in the server's log"
_NOT_ADDED = "the engine could not take this request; the reason is in the server's log"
# Nothing can be computed until a transfer is done, a lease is over: how soon to look again.
_POLL_S = 0.001
# So often in a row the workers may fail in a step that computes nothing and only tells them whom to forget.
_MAX_UNTOLD = 3
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_NOTHING = ModelRunnerOutput(request_ids=[], sampled_token_ids=[])

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Launched:
    """A step that the workers have. Without futures: there was nothing to tell them."""

    scheduled: SchedulerOutput
    forward: Future[None] | None = None
    sampled: Future[ModelRunnerOutput] | None = None


class EngineCore:
    """Builds executor and scheduler, then computes step after step. Used by one thread, ``abort_soon`` excepted.

    Args:
        config: the resolved configuration.
        plugins: the resolved plugin set.
        on_progress: told each stage of the start.

    Attributes:
        board: told when steps begin and end; None where nobody watches.

    Raises:
        ConfigError, PluginError, EngineStartError: the engine can't start; nothing of it is left running.
    """

    def __init__(
        self, config: EngineConfig, plugins: PluginManager, on_progress: Callable[[str], None] | None = None
    ) -> None:
        report = on_progress or _log.debug
        self._plugins = plugins
        self._pending: list[EngineCoreOutput] = []
        self._aborts: SimpleQueue[Sequence[str]] = SimpleQueue()
        self._failure: str | None = None
        self._num_untold = 0
        self.board: StepBoard | None = None
        self._launched: deque[_Launched] = deque()
        self._settling = False
        self._failure_listener: Callable[[str], None] = _log.error
        with starting(plugins):
            self._start(config, plugins, report)
        # What lives until the end isn't worth walking in every collection.
        gc.collect()
        gc.freeze()

    def _start(self, config: EngineConfig, plugins: PluginManager, report: Callable[[str], None]) -> None:
        self._in_lockstep = config.parallel.lockstep
        report("loading plugins")
        plugins.load_general(Process.ENGINE_CORE)
        restore_settings(plugins, config.plugin_settings)
        executor_class = class_by_name(plugins, "executors", config.parallel.executor, "--distributed-executor-backend")
        scheduler_class = class_by_name(plugins, "schedulers", config.scheduler.scheduler, "--scheduler")
        report("loading the model")
        with starting(plugins, "executors", config.parallel.executor):
            self._executor: Executor = executor_class(config, plugins)
        try:
            self._executor.on_failure(self._executor_failed)
            self.plan, group_specs = self._size_cache(config, report)
            with starting(plugins, "schedulers", config.scheduler.scheduler):
                self._scheduler: Scheduler = scheduler_class(config, self.plan, group_specs, plugins)
            self._max_in_flight = _max_in_flight(config, scheduler_class)
            if config.kv_transfer.kv_connector is not None:
                self._scheduler.receive_handshakes(self._executor.collective_rpc("kv_handshake"))
            self._life_cycle = LifeCycle.collect(config, plugins)
            self._channel = PluginChannel(config, plugins, self._executor)
        except BaseException:
            self._executor.shutdown()
            raise

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a request. One that can't run ends at once, in an output; nothing is raised."""
        try:
            self._scheduler.add_request(request)
        except RequestError as error:
            self.reject(request.request_id, str(error), ErrorKind.REQUEST)
        except Exception:  # one request's trouble must not become everybody's
            _log.exception("request %s could not be added", request.request_id)
            self.reject(request.request_id, _NOT_ADDED)
        else:
            if self._life_cycle is not None:
                self._life_cycle.added(request)

    def reject(self, request_id: str, error: str, kind: ErrorKind = ErrorKind.ENGINE) -> None:
        """End a request that the scheduler doesn't know with an error."""
        self._pending.append(
            EngineCoreOutput(
                request_id=request_id, finish_reason=FinishReason.ERROR, error=valid_text(error), error_kind=kind
            ),
        )

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests; unknown ids are ignored. Their last outputs come with the next step."""
        self._drain_aborts()
        self._tell(self._scheduler.finish_requests(request_ids, FinishReason.ABORT))

    def abort_soon(self, request_ids: Sequence[str]) -> None:
        """From any thread: end requests while a step runs, before its result is taken."""
        self._aborts.put(request_ids)

    def has_work(self) -> bool:
        """Whether ``step`` has something to do or to tell."""
        waits = self._pending or self._launched
        return bool(waits) or self._failure is not None or self._scheduler.has_work()

    def step(self) -> EngineCoreOutputs | None:
        """Launch steps until as many are on their way as may be, then finish the oldest; None: there was nothing to do.

        Raises:
            EngineDeadError: the workers have gone.
        """
        if self._failure is not None:
            raise EngineDeadError(self._failure)
        if not self.has_work():
            return None
        self._fill()
        oldest = self._launched.popleft()
        self._tell(self._finish(oldest))
        if self.board is not None and oldest.forward is not None:
            self.board.step_ends()
        computed = oldest.scheduled.total_num_scheduled_tokens
        if not (computed or self._pending or self._launched) and self._scheduler.has_work():
            time.sleep(_POLL_S)
        outputs, self._pending = self._pending, []
        return self.with_events(EngineCoreOutputs(outputs=outputs, stats=self._scheduler.stats()))

    @property
    def in_lockstep(self) -> bool:
        """Whether each step of this engine is one of others, too."""
        return self._in_lockstep

    def dummy_step(self) -> None:
        """Compute a step that is nobody's, because others compute one that needs this engine's part."""
        self._executor.collective_rpc("dummy_step")

    def with_events(self, outputs: EngineCoreOutputs) -> EngineCoreOutputs:
        """A message to the front end, with the events that plugins have told meanwhile."""
        return self._channel.with_events(outputs)

    def call(self, method: str, args: Sequence[Any] = ()) -> Any:
        """Call by name; arguments and result are plain data. A name with a dot in it, ``plugin.method``, is a plugin's.

        Raises:
            RequestError: there is no such call, or it doesn't take these arguments.
        """
        calls: dict[str, Callable[..., Any]] = {
            "kv_events": self._take_kv_events,
            "plan": lambda: msgspec.to_builtins(self.plan),
            "plugins": self._describe_plugins,
            "reset_prefix_cache": self._scheduler.reset_prefix_cache,
            "set_log_level": self._set_log_level,
            "stats": lambda: msgspec.to_builtins(self._scheduler.stats()),
        }
        if "." in method:
            return self._channel.call(method, args)
        if method not in calls:
            raise RequestError(f"the engine core has no call {method[:80]!r}; it has {', '.join(calls)}")
        return calls[method](*args)

    def on_failure(self, listener: Callable[[str], None]) -> None:
        """Register whom to wake, from any thread, when the workers die; ``step`` raises then."""
        self._failure_listener = listener

    def shutdown(self) -> None:
        """Stop the workers. May be called twice."""
        if self._life_cycle is not None:
            self._life_cycle.close()
        self._scheduler.shutdown()
        self._executor.shutdown()
        gc.unfreeze()

    def _size_cache(self, config: EngineConfig, report: Callable[[str], None]) -> tuple[RuntimePlan, list[KVCacheSpec]]:
        report("measuring memory")
        plan, group_specs = plan_runtime(config, self._executor.reports(), self._plugins)
        report("allocating the KV cache and warming up")
        self._executor.initialize(plan)
        return plan, group_specs

    def _fill(self) -> None:
        """Launch steps as long as there is something to compute beside those that are on their way.

        None after a failure until all that were on their way have come back: they may fail for its sake.
        """
        self._settling = self._settling and bool(self._launched)
        while len(self._launched) < self._max_in_flight and not self._settling:
            scheduled = self._scheduler.schedule()
            if self._life_cycle is not None:
                self._life_cycle.scheduled(scheduled)
            if self._launched and not _tells_something(scheduled):
                self._tell(self._scheduler.update(scheduled, _NOTHING))
                return
            self._launched.append(self._launch(scheduled))
            if not scheduled.total_num_scheduled_tokens:
                return

    def _launch(self, scheduled: SchedulerOutput) -> _Launched:
        """Hand a step to the workers; what goes wrong is told when it is finished."""
        if not _tells_something(scheduled):
            return _Launched(scheduled)
        if self.board is not None:
            self.board.step_begins(scheduled)
        sampled: Future[ModelRunnerOutput]
        try:
            forward = self._executor.execute_model(scheduled)
            # Grammar bitmasks are computed here, while the device works.
            failed = forward.done() and forward.exception() is not None
            sampled = Future() if failed else self._executor.sample_tokens()
        except Exception as error:
            forward, sampled = Future(), Future()
            forward.set_exception(error)
        return _Launched(scheduled, forward, sampled)

    def _finish(self, launched: _Launched) -> list[EngineCoreOutput]:
        """Take a step's result; it is the oldest one."""
        scheduled, result = launched.scheduled, _NOTHING
        try:
            if launched.forward is not None and launched.sampled is not None:
                launched.forward.result()
                result = launched.sampled.result()
        except EngineDeadError:
            raise
        except Exception as error:  # the step border: its requests end, all others go on
            _log.exception("step %d failed", scheduled.step)
            self._settling = True
            self._check_workers_listen(scheduled, error)
            self._drain_aborts()
            message = str(error) if isinstance(error, CorefwError) else _STEP_FAILED
            return self._scheduler.fail_step(scheduled, message)
        self._num_untold = 0
        self._drain_aborts()
        self._channel.forward(result)
        return self._scheduler.update(scheduled, result)

    def _check_workers_listen(self, scheduled: SchedulerOutput, error: Exception) -> None:
        """What they must be told is told again in the next step: without an end, where they always fail."""
        self._num_untold = 0 if scheduled.total_num_scheduled_tokens else self._num_untold + 1
        if self._num_untold >= _MAX_UNTOLD:
            raise EngineDeadError(f"the workers failed {_MAX_UNTOLD} times in a row with nothing to compute") from error

    def _drain_aborts(self) -> None:
        while not self._aborts.empty():
            self._tell(self._scheduler.finish_requests(self._aborts.get_nowait(), FinishReason.ABORT))

    def _tell(self, outputs: list[EngineCoreOutput]) -> None:
        """Queue the scheduler's news for the front end."""
        if self._life_cycle is not None:
            self._life_cycle.ended_or_grew(outputs)
        self._pending += outputs

    def _executor_failed(self, reason: str) -> None:
        self._failure = reason
        self._failure_listener(reason)

    def _take_kv_events(self) -> Any:
        batch = self._scheduler.take_kv_events()
        if batch is None:
            raise RequestError("this engine records no KV events; start it with --kv-events")
        return msgspec.to_builtins(batch, builtin_types=(bytes,))

    def _set_log_level(self, level: str) -> None:
        """Of the workers as well, wherever they run."""
        if level not in _LOG_LEVELS:
            raise RequestError(f"log level {level[:40]!r} is unknown; use one of {', '.join(_LOG_LEVELS)}")
        set_log_level(level)
        self._executor.collective_rpc("set_log_level", level)

    def _describe_plugins(self) -> Any:
        return msgspec.to_builtins(describe(self._plugins, Process.ENGINE_CORE))


def _max_in_flight(config: EngineConfig, scheduler: type[Scheduler]) -> int:
    """Steps that may be on their way at once.

    Raises:
        ConfigError: async scheduling was asked for, and this scheduler can't.
    """
    if config.max_batches_in_flight == 1 or scheduler.schedules_ahead:
        return config.max_batches_in_flight
    if config.scheduler.async_scheduling:
        raise ConfigError(
            f"--async-scheduling: scheduler {config.scheduler.scheduler!r} can't put a step together before the one "
            "before it is done (it doesn't declare schedules_ahead); leave the flag out, or take another scheduler"
        )
    _log.warning("scheduler %s makes one step at a time: pipeline stages wait for one another", scheduler.name)
    return 1


def _tells_something(scheduled: SchedulerOutput) -> bool:
    return bool(
        scheduled.total_num_scheduled_tokens
        or scheduled.finished_request_ids
        or scheduled.preempted_request_ids
        or scheduled.kv_transfer is not None
    )
