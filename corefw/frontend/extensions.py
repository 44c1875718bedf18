"""Data that clients send to plugins with a request: who takes any, and whether they are right."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from corefw.errors import EngineError, RequestError
from corefw.interfaces.hooks.lifecycle import RequestExtension, corefw_request_extension
from corefw.messages.plain import plain_problem
from corefw.messages.request import PlainDict
from corefw.plugin_system.names import suggestion

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.plugin_system.contributions import Contribution
    from corefw.plugin_system.manager import PluginManager

__all__ = ["MAX_EXTENSION_DEPTH", "MAX_EXTENSION_VALUES", "Extensions"]

MAX_EXTENSION_DEPTH = 8
MAX_EXTENSION_VALUES = 100_000

_log = logging.getLogger(__name__)


class Extensions:
    """The plugins that take data with requests. Any thread may use it.

    Args:
        takers: what plugins declared; each has a plugin's name.
    """

    def __init__(self, takers: Iterable[Contribution[RequestExtension]] = ()) -> None:
        self._takers = {taker.plugin: taker for taker in takers}

    @classmethod
    def collect(cls, plugins: PluginManager, config: EngineConfig) -> Extensions:
        """Ask the plugins once."""
        return cls(plugins.collect(RequestExtension, corefw_request_extension, config))

    def checked(self, given: Mapping[str, Any] | None) -> PlainDict:
        """What travels with the request: the client's data, by plugin.

        Raises:
            RequestError: data for a plugin that isn't there or takes none, data that aren't plain or too large, or data
                that the plugin refuses.
            EngineError: a plugin failed to check its data.
        """
        if not given:
            return {}
        for name, data in given.items():
            param = f"extensions.{name[:80]}"
            if name not in self._takers:
                hint = suggestion(name, self._takers)
                raise RequestError(f"no plugin of this server takes extensions by that name; {hint}", param=param)
            if not isinstance(data, Mapping):
                raise RequestError("what a plugin gets in extensions must be an object", param=param)
            problem = plain_problem(data, max_depth=MAX_EXTENSION_DEPTH, max_values=MAX_EXTENSION_VALUES)
            if problem is not None:
                raise RequestError(
                    f"what a plugin gets in extensions must be plain data, but it {problem}", param=param
                )
            self._check(self._takers[name], data, param)
        return {name: dict(data) for name, data in given.items()}

    @staticmethod
    def _check(taker: Contribution[RequestExtension], data: Mapping[str, Any], param: str) -> None:
        try:
            taker.value.check(data)
        except RequestError as error:
            error.param = param if error.param is None else f"{param}.{error.param}"
            raise
        except Exception as error:  # the plugin border: data that nobody checked don't run
            _log.exception("plugin %s failed to check a request's data", taker.owner)
            raise EngineError(f"plugin {taker.owner} failed to check what it got; the log has the details") from error
