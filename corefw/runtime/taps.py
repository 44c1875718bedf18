"""Plugins' wishes for points in the model: named before it is built, connected afterwards."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

from corefw.errors import ConfigError, PluginError
from corefw.interfaces.hooks.model import GRAPH_KINDS, ModelTaps, corefw_model_taps
from corefw.models.taps import UnknownTapPoint
from corefw.plugin_system.observers import ObserverCalls
from corefw.runtime.graphs.descriptor import GraphMode
from corefw.runtime.model_runner.step_observers import Watcher

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from corefw.config.engine_config import EngineConfig
    from corefw.models.layers.context import BuildContext
    from corefw.models.taps import Tap
    from corefw.plugin_system.manager import PluginManager

__all__ = ["WantedTaps"]


class WantedTaps:
    """What plugins want to see of the model.

    Attributes:
        watchers: one a plugin, in order.
    """

    def __init__(self, config: EngineConfig, plugins: PluginManager) -> None:
        found = plugins.collect(ModelTaps, corefw_model_taps, config)
        self.watchers: Sequence[Watcher] = [Watcher(ObserverCalls(one, ModelTaps, plugins.guard)) for one in found]
        self._points = [(watcher, _points(watcher.observer.owner, watcher.observer.value)) for watcher in self.watchers]

    def built_into(self, build: BuildContext) -> BuildContext:
        """What the model is built with."""
        wanted = frozenset(point for _, points in self._points for point in points)
        return dataclasses.replace(build, taps=build.taps | wanted) if wanted else build

    def refuse(self, setting: str) -> None:
        """Fail where plugins want points: what they see in one process wouldn't go out with the tokens of another.

        Raises:
            ConfigError: somebody wants one.
        """
        for watcher in self.watchers:
            raise ConfigError(
                f"plugin {watcher.observer.owner} wants points of the model, which with {setting} is spread over "
                "processes that don't sample; leave the flag or the plugin out"
            )

    def explain(self, error: UnknownTapPoint) -> ConfigError:
        """The error with who wants the point."""
        owners = [watcher.observer.owner for watcher, points in self._points if error.point in points]
        return ConfigError(f"plugin {' and '.join(owners)}: {error}")

    def connect(self, model: nn.Module) -> None:
        """Let the built-in points show what they see.

        Raises:
            ConfigError: the model declares no points at all.
        """
        built: Mapping[str, Tap] = getattr(model, "taps", {})
        for watcher, points in self._points:
            for point in points:
                if point not in built:
                    raise ConfigError(
                        f"plugin {watcher.observer.owner} wants the point {point[:80]!r} of the model, but "
                        f"{type(model).__name__} has no such points; leave the plugin out, or use another --model-impl"
                    )
                built[point].observers.append(partial(watcher.show, point))

    def obstacles(self) -> list[tuple[str, frozenset[GraphMode]]]:
        """The graphs that points would break, and why."""
        return [
            (
                f"plugin {watcher.observer.owner} taps the model",
                frozenset(GraphMode[kind.upper()] for kind in watcher.observer.value.breaks),
            )
            for watcher in self.watchers
            if watcher.observer.value.breaks
        ]

    def decisions(self) -> tuple[tuple[str, str, str], ...]:
        """What was tapped by whom, and which graphs that would break."""
        lines = []
        for watcher, points in self._points:
            broken = " and ".join(sorted(watcher.observer.value.breaks)) or "no"
            why = f"wanted by plugin {watcher.observer.owner}; they break {broken} graphs"
            lines.append(("tap points", _ranges(points), why))
        return tuple(lines)


def _points(owner: str, taps: Any) -> tuple[str, ...]:
    points = tuple(dict.fromkeys(taps.points))
    if not points or not all(isinstance(point, str) for point in points):
        raise PluginError(f"plugin {owner} wants taps, but names no points; set points to their names")
    if unknown := set(taps.breaks) - GRAPH_KINDS:
        raise PluginError(
            f"plugin {owner} says that its taps break {', '.join(map(str, unknown))}; graphs are "
            f"{' or '.join(sorted(GRAPH_KINDS))}"
        )
    return points


def _ranges(points: Sequence[str]) -> str:
    shown = ", ".join(points[:4])
    return shown if len(points) <= 4 else f"{shown} and {len(points) - 4} more"
