"""Finds the plugin that manages a layer's KV-cache spec."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from corefw.errors import ConfigError
from corefw.interfaces.kv_cache import KVCacheSpec, KVCacheSpecPlugin

if TYPE_CHECKING:
    from corefw.plugin_system.manager import PluginManager

__all__ = ["SpecRegistry"]


class SpecRegistry:
    """Spec class → plugin, along the spec's MRO.

    Args:
        plugins: one plugin a spec class.

    Raises:
        ConfigError: two plugins serve the same class.
    """

    def __init__(self, plugins: Iterable[KVCacheSpecPlugin]) -> None:
        self._by_class: dict[type[KVCacheSpec], KVCacheSpecPlugin] = {}
        for plugin in plugins:
            other = self._by_class.setdefault(plugin.spec_class, plugin)
            if other is not plugin:
                raise ConfigError(
                    f"KV-cache spec {plugin.spec_class.__name__} is served by two plugins, {type(other).__name__} and "
                    f"{type(plugin).__name__}; leave one out with --plugins -NAME"
                )

    @classmethod
    def from_plugins(cls, plugins: PluginManager) -> SpecRegistry:
        """All of group ``corefw.kv_cache_specs``."""
        return cls(loaded.create() for loaded in plugins.load_all("kv_cache_specs"))

    def resolve(self, spec: KVCacheSpec) -> KVCacheSpecPlugin:
        """The plugin of the spec's nearest registered ancestor.

        Raises:
            ConfigError: there is none.
        """
        for ancestor in type(spec).__mro__:
            plugin = self._by_class.get(ancestor)
            if plugin is not None:
                return plugin
        known = ", ".join(sorted(spec_class.__name__ for spec_class in self._by_class)) or "none"
        raise ConfigError(
            f"no plugin of group corefw.kv_cache_specs serves the KV-cache spec {type(spec).__name__} or an ancestor "
            f"of it (served: {known}); install or allow the plugin that brings it"
        )
