"""The resolved set on its way from a parent to its children: what is handed over, and how a child finds it again."""

from __future__ import annotations

from collections.abc import Iterable

from corefw.config.engine_config import ResolvedPlugin
from corefw.errors import PluginError
from corefw.plugin_system.discovery import FoundPlugin
from corefw.plugin_system.verdicts import State, Verdict

__all__ = ["digest_of", "handed_over", "inherit"]


def handed_over(verdict: Verdict) -> ResolvedPlugin:
    """What a child gets of a plugin that may be loaded."""
    plugin = verdict.plugin
    return ResolvedPlugin(
        group=plugin.group,
        name=plugin.name,
        value=plugin.value,
        distribution=plugin.distribution,
        version=plugin.version,
        named=verdict.named,
    )


def inherit(resolved: Iterable[ResolvedPlugin], found: Iterable[FoundPlugin]) -> list[Verdict]:
    """Verdicts on what was found in a child: the parent's set may be loaded, nothing else.

    Raises:
        PluginError: a plugin of the set is missing here, or is another one.
    """
    here = {(p.group, p.name, p.distribution): p for p in found}
    wanted = {(r.group, r.name, r.distribution): r for r in resolved}
    problems = [text for key, r in wanted.items() if (text := _difference(r, here.get(key)))]
    if problems:
        raise PluginError("the plugins of this process differ from its parent's: " + "; ".join(problems))
    return [_inherited(plugin, wanted.get(key)) for key, plugin in here.items()]


def digest_of(resolved: Iterable[ResolvedPlugin]) -> str:
    """One text for a set: equal where groups, names, values, distributions and versions are."""
    import hashlib  # here: its crypto library takes longer to load than all that a list of plugins needs

    lines = "".join(f"{r.group} {r.name} {r.value} {r.distribution} {r.version}\n" for r in resolved)
    return hashlib.sha256(lines.encode()).hexdigest()


def _inherited(plugin: FoundPlugin, wanted: ResolvedPlugin | None) -> Verdict:
    if wanted is None:
        return Verdict(plugin=plugin, state=State.NOT_ALLOWED, reason="not in the set that the parent resolved")
    return Verdict(plugin=plugin, state=State.FOUND, reason="resolved by the parent", named=wanted.named)


def _difference(wanted: ResolvedPlugin, found: FoundPlugin | None) -> str | None:
    label = f"{wanted.group}: {wanted.distribution}/{wanted.name}"
    if found is None:
        return f"{label} {wanted.version} isn't installed here"
    if (found.version, found.value) != (wanted.version, wanted.value):
        return f"{label} is {found.version} ({found.value}) here, {wanted.version} ({wanted.value}) there"
    return None
