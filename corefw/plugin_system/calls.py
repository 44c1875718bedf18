"""Functions that plugins offer by name in the engine core or in a worker: found once, called with plain data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from corefw.errors import PluginError, RequestError
from corefw.interfaces.hooks.rpc import corefw_rpc_handlers
from corefw.messages.plain import plain_problem
from corefw.plugin_system.blame import told
from corefw.plugin_system.names import suggestion

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.plugin_system.manager import PluginManager

__all__ = ["PluginCalls"]

_MAX_ERROR_CHARS = 400

_log = logging.getLogger(__name__)


class PluginCalls:
    """The functions of one process's role.

    Attributes:
        names: ``plugin.method``, sorted.
    """

    def __init__(self, handlers: Mapping[str, Callable[..., Any]]) -> None:
        self._handlers = dict(handlers)
        self.names = tuple(sorted(handlers))

    @classmethod
    def collect(cls, config: EngineConfig, plugins: PluginManager, process: str) -> PluginCalls:
        """Ask the general plugins that were loaded.

        Raises:
            PluginError: a plugin offers what can't be called by name.
        """
        handlers: dict[str, Callable[..., Any]] = {}
        for contribution in plugins.collect(Mapping, corefw_rpc_handlers, config, process):
            for method, handler in contribution.value.items():
                if not isinstance(method, str) or not method.isidentifier() or not callable(handler):
                    raise PluginError(
                        f"plugin {contribution.owner} offers {str(method)[:80]!r} to be called; it takes a name that "
                        "is a Python identifier, and a function"
                    )
                handlers[f"{contribution.plugin}.{method}"] = handler
        return cls(handlers)

    def call(self, name: str, args: Sequence[Any]) -> Any:
        """Call one of ``names``.

        Raises:
            RequestError: it isn't there, it raised, or it gave back what isn't plain data.
        """
        handler = self._handlers.get(name)
        if handler is None:
            raise RequestError(f"no plugin offers {name[:80]!r}; {suggestion(name, self.names)}")
        try:
            value = handler(*args)
        except (Exception, SystemExit) as error:  # the plugin border
            _log.warning("the call of %s failed", name, exc_info=error)
            raise RequestError(f"{name} failed: {told(error)}"[:_MAX_ERROR_CHARS]) from error
        if problem := plain_problem(value):
            raise RequestError(f"{name} failed: its result {problem}")
        return value
