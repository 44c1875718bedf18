"""Every plugin that is installed with its state, and what would stop a start: listed instead of raised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from corefw.plugin_system.allowlist import Allowlist, read_allowlist
from corefw.plugin_system.discovery import FoundPlugin, find_plugins
from corefw.plugin_system.verdicts import State, Verdict, judge

__all__ = ["Inventory", "loaded", "take_inventory"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """What ``corefw plugins list`` knows.

    Attributes:
        verdicts: one a plugin, in order.
        problems: what would stop a start with these settings.
        allowlist: which list was applied.
    """

    verdicts: tuple[Verdict, ...]
    problems: tuple[str, ...]
    allowlist: Allowlist


def take_inventory(allow: str | None = None, lock: str | None = None) -> Inventory:
    """By metadata alone: nothing is imported.

    Args:
        allow: value of ``--plugins``; None leaves it to ``VLLM_PLUGINS``.
        lock: value of ``--plugin-lock``.

    Raises:
        ConfigError: the allowlist is malformed, or the lock can't be read.
    """
    allowlist = read_allowlist(allow)
    found = find_plugins()
    verdicts, problems = judge(found, allowlist)
    problems = (*allowlist.complaints(found), *problems)
    if lock is not None:
        from corefw.plugin_system.lock import lock_problems

        problems += lock_problems(Path(lock), (verdict.plugin for verdict in verdicts if verdict.allowed))
    return Inventory(verdicts=verdicts, problems=problems, allowlist=allowlist)


def loaded(inventory: Inventory, timeout_s: float, only: Callable[[FoundPlugin], bool] | None = None) -> Inventory:
    """The same after loading, in a child process, what may be loaded; what fails though it was named is a problem.

    Args:
        timeout_s: how long one plugin may take.
        only: which of them; None for all.
    """
    from corefw.plugin_system.probe import probe

    chosen = [v.plugin for v in inventory.verdicts if v.allowed and (only is None or only(v.plugin))]
    fates = probe(chosen, timeout_s)
    verdicts = tuple(
        replace(v, state=fates[v.plugin][0], reason=fates[v.plugin][1]) if v.plugin in fates else v
        for v in inventory.verdicts
    )
    failed = tuple(
        f"{v.plugin.full_name} ({v.plugin.group}) is {v.state}: {v.reason}"
        for v in verdicts
        if v.state is State.FAILED and (v.named or v.plugin.builtin)
    )
    return replace(inventory, verdicts=verdicts, problems=(*inventory.problems, *failed))
