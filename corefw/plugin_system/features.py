"""What this corefw can do, by name, so that a plugin for several releases asks instead of comparing versions."""

from __future__ import annotations

from corefw.plugin_system.groups import GROUPS

__all__ = ["FEATURES", "has_feature"]

_GROUP, _HOOK = "group:", "hook:"

FEATURES: dict[str, str] = {
    "api_version_ranges": "`corefw.api_versions` takes ranges, like `v1:v2`",
    "plugin_digest": "`PluginManager.digest()` compares the plugins of ranks that have no common parent",
    "plugin_priorities": "`corefw.priorities` orders the plugins of a group",
    "plugin_lock": "`corefw plugins lock` and `--plugin-lock`",
}
"""Name and meaning. Beside these, ``group:NAME`` and ``hook:NAME`` are features of their own."""


def has_feature(name: str) -> bool:
    """Whether this corefw has a named feature; False for a name that it has never heard of.

    Args:
        name: one of ``FEATURES``; ``group:NAME`` for a plugin group with a consumer; ``hook:NAME`` for a hook.
    """
    if name.startswith(_GROUP):
        return any(group.name == name.removeprefix(_GROUP) for group in GROUPS if not group.reserved)
    if name.startswith(_HOOK):
        from corefw.plugin_system.hooks import HOOKS

        return name.removeprefix(_HOOK) in HOOKS
    return name in FEATURES
