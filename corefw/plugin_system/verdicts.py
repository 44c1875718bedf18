"""What may be loaded, from metadata alone: each plugin found gets a state and the reason for it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from corefw.plugin_system.allowlist import Allowlist, Item, Mode
from corefw.plugin_system.discovery import FoundPlugin
from corefw.plugin_system.groups import GROUPS_BY_NAME, DefaultPolicy
from corefw.plugin_system.names import suggestion
from corefw.plugin_system.versions import declared_range_reason

__all__ = ["State", "Verdict", "judge", "log_left_out"]

_MAX_NAMED = 8  # in one line of the log

logger = logging.getLogger(__name__)


class State(StrEnum):
    """What has become of a plugin. The first five are known from metadata, the others after loading; but a plugin of a
    reserved group is known to be unavailable from metadata, too.
    """

    FOUND = "found"
    NOT_ALLOWED = "not allowed"
    DENIED = "denied by default"
    INCOMPATIBLE = "incompatible"
    SHADOWED = "shadowed"
    LOADED = "loaded"
    ACTIVE = "active"
    UNUSED = "unused"
    UNAVAILABLE = "unavailable"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What metadata and allowlist say of one plugin.

    Attributes:
        plugin: the plugin.
        state: one of the first five states, or ``unavailable`` in a reserved group.
        reason: why, in words.
        named: the operator asked for it by name, so a failure stops the start.
        picked: named as ``distribution/name``.
    """

    plugin: FoundPlugin
    state: State
    reason: str
    named: bool = False
    picked: bool = False

    @property
    def allowed(self) -> bool:
        """Whether it may be loaded."""
        return self.state is State.FOUND


def judge(found: Iterable[FoundPlugin], allowlist: Allowlist) -> tuple[tuple[Verdict, ...], tuple[str, ...]]:
    """A verdict for each plugin, in the given order, and what must stop the start.

    That is a plugin that was asked for and is incompatible or of a reserved group, and two of one name.
    """
    verdicts = [_verdict(plugin, allowlist) for plugin in found]
    problems = [
        f"{v.plugin.full_name} was asked for in {allowlist.source}, but is {v.state}: {v.reason}"
        for v in verdicts
        if v.named and (v.state is State.INCOMPATIBLE or _means_reserved(v, verdicts, allowlist))
    ]
    by_name: dict[tuple[str, str], list[int]] = {}
    for index, verdict in enumerate(verdicts):
        if verdict.allowed:
            by_name.setdefault((verdict.plugin.group, verdict.plugin.name), []).append(index)
    for indices in by_name.values():
        problems += _settle(verdicts, indices, allowlist)
    return tuple(verdicts), tuple(problems)


def _verdict(plugin: FoundPlugin, allowlist: Allowlist) -> Verdict:
    item = allowlist.adds(plugin)
    state, reason = _state(plugin, allowlist, item)
    return Verdict(
        plugin=plugin,
        state=state,
        reason=reason,
        named=item is not None and not plugin.builtin,
        picked=item is not None and item.picks,
    )


def _state(plugin: FoundPlugin, allowlist: Allowlist, item: Item | None) -> tuple[State, str]:
    group = GROUPS_BY_NAME.get(plugin.group)
    if group is None:
        return State.INCOMPATIBLE, f"no plugin group {plugin.group!r}; {suggestion(plugin.group, GROUPS_BY_NAME)}"
    if (reason := declared_range_reason(group, plugin.api_version)) is not None:
        return State.INCOMPATIBLE, reason
    if group.reserved:
        return State.UNAVAILABLE, f"the group {group.name} is reserved: what would use its plugins isn't built yet"
    if plugin.builtin:
        return State.FOUND, "built in"
    if (removed := allowlist.removes(plugin)) is not None:
        return State.NOT_ALLOWED, f"taken out by -{removed.text} in {allowlist.source}"
    if item is not None:
        return State.FOUND, f"named in {allowlist.source}"
    if allowlist.mode is Mode.ONLY:
        return State.NOT_ALLOWED, f"{allowlist.source} is set and doesn't name it"
    if group.policy is DefaultPolicy.DENY:
        return State.DENIED, f"plugins of {group.name} must be named: +{plugin.name} in --plugins or VLLM_PLUGINS"
    return State.FOUND, "allowed by default"


def _means_reserved(verdict: Verdict, verdicts: Sequence[Verdict], allowlist: Allowlist) -> bool:
    """Whether the operator asked for that plugin of a reserved group, and meant no other by the same entry."""
    item = allowlist.adds(verdict.plugin)
    if verdict.state is not State.UNAVAILABLE or item is None or item.name is None:
        return False
    return not any(item.names(other.plugin) for other in verdicts if other.state is not State.UNAVAILABLE)


def _settle(verdicts: list[Verdict], indices: Sequence[int], allowlist: Allowlist) -> list[str]:
    """Several allowed plugins of one name: the picked one stays and shadows the others, else it is a problem."""
    if len(indices) == 1:
        return []
    picked = [index for index in indices if verdicts[index].picked]
    if len(picked) != 1:
        first = verdicts[indices[0]].plugin
        names = " and ".join(f"{verdicts[i].plugin.full_name} ({verdicts[i].plugin.value})" for i in indices)
        return [
            f"{len(indices)} plugins of {first.group} are called {first.name!r}: {names}; pick one as "
            f"distribution/name in {allowlist.source}, or uninstall the other"
        ]
    winner = verdicts[picked[0]].plugin
    for index in indices:
        if index not in picked:
            reason = f"{winner.full_name} was picked in {allowlist.source}"
            verdicts[index] = replace(verdicts[index], state=State.SHADOWED, reason=reason)
    return []


def log_left_out(verdicts: Iterable[Verdict]) -> None:
    """A line each only for who asks; an operator who knows of these plugins needs one in all."""
    names = []
    for verdict in verdicts:
        if verdict.allowed:
            continue
        is_wrong = verdict.state is State.INCOMPATIBLE
        plugin, state = verdict.plugin, verdict.state.value
        level = logging.WARNING if is_wrong else logging.DEBUG
        logger.log(level, "plugin %s (%s): %s: %s", plugin.full_name, plugin.group, state, verdict.reason)
        if not is_wrong:
            names.append(plugin.name)
    if names:
        more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
        shown = ", ".join(names[:_MAX_NAMED])
        logger.info("plugins that are installed and left out: %s%s (`corefw plugins list` says why)", shown, more)
