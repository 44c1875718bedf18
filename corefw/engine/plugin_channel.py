"""The core's side of calls and events of plugins: its own, and those of its workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from corefw.errors import RequestError
from corefw.messages.events import PluginEvent
from corefw.messages.outputs import EngineCoreOutputs, ModelRunnerOutput
from corefw.messages.plain import plain_problem
from corefw.plugin_system.calls import PluginCalls
from corefw.plugin_system.events import EventQueue
from corefw.plugin_system.groups import Process
from corefw.plugin_system.names import suggestion

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.interfaces.executor import Executor
    from corefw.plugin_system.manager import PluginManager

__all__ = ["PluginChannel"]


class PluginChannel:
    """Used by the core's thread.

    Args:
        config: the engine's.
        plugins: those that were loaded in the core.
        executor: its workers are asked when somebody first calls what the core doesn't have.
    """

    def __init__(self, config: EngineConfig, plugins: PluginManager, executor: Executor) -> None:
        self._executor = executor
        self._calls = PluginCalls.collect(config, plugins, Process.ENGINE_CORE)
        self._queue = EventQueue.collect(config, plugins, Process.ENGINE_CORE)
        self._worker_names: frozenset[str] | None = None

    def call(self, name: str, args: Sequence[Any]) -> Any:
        """What the core's function answers, or the workers' answers by rank.

        Raises:
            RequestError: there is no such function, or it failed.
        """
        if problem := plain_problem(list(args)):
            raise RequestError(f"{name[:80]} can't be called so: the list of its arguments {problem}")
        in_core, in_workers = name in self._calls.names, name in self._names_in_workers()
        if in_core and in_workers:
            raise RequestError(f"{name[:80]} is offered both in the engine core and in workers; its plugin is wrong")
        if in_core:
            return self._calls.call(name, args)
        if not in_workers:
            known = [*self._calls.names, *self._names_in_workers()]
            raise RequestError(f"no plugin offers {name[:80]!r}; {suggestion(name, known)}")
        try:
            return self._executor.collective_rpc("call_plugin", name, list(args))
        finally:
            for events, num_dropped in self._executor.collective_rpc("take_events"):
                self._add(msgspec.convert(events, list[PluginEvent]), num_dropped)

    def forward(self, result: ModelRunnerOutput) -> None:
        """Take a step's events along."""
        self._add(result.events, result.num_dropped_events)

    def with_events(self, outputs: EngineCoreOutputs) -> EngineCoreOutputs:
        """A message to the front end with what has happened since the last one."""
        if self._queue is None:
            return outputs
        events, num_dropped = self._queue.take()
        if not events and not num_dropped:
            return outputs
        return msgspec.structs.replace(outputs, events=events, num_dropped_events=num_dropped)

    def _add(self, events: Sequence[PluginEvent], num_dropped: int) -> None:
        if not events and not num_dropped:
            return
        if self._queue is None:
            self._queue = EventQueue(Process.ENGINE_CORE)
        self._queue.extend(events, num_dropped)

    def _names_in_workers(self) -> frozenset[str]:
        if self._worker_names is None:
            answers = self._executor.collective_rpc("plugin_calls")
            self._worker_names = frozenset(name for names in answers for name in names)
        return self._worker_names
