"""What plugins say about a configuration before it exists: what a model's name stands for, and other defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from corefw.config.args import SECTIONS, UserArgs, check_setting
from corefw.errors import ConfigError, PluginError
from corefw.interfaces.hooks.configuration import ModelReference, corefw_propose, corefw_resolve_model
from corefw.interfaces.platform import Proposal
from corefw.interfaces.selection import Rejected, Selection
from corefw.plugin_system.names import suggestion

if TYPE_CHECKING:
    from corefw.config.model_info import ModelInfo
    from corefw.plugin_system.manager import PluginManager

__all__ = ["apply_plugin_proposals", "stands_for"]

# Settled before plugins are asked, or not the engine's.
_CLOSED = ("load", "plugins", "device", "server")
_OPEN = {
    f"{section}.{item.name}"
    for section, owner in SECTIONS.items()
    if section not in _CLOSED
    for item in dataclasses.fields(owner)
    if item.metadata.get("help")
}


def stands_for(reference: str, plugins: PluginManager) -> tuple[str, list[Selection]]:
    """The reference that model sources are asked for; the selection is there if a plugin changed it."""
    answers = plugins.collect(ModelReference, corefw_resolve_model, reference)
    if not answers:
        return reference, []
    first, later = answers[0], answers[1:]
    rejected = tuple(Rejected(item.owner, f"{first.owner} comes first") for item in later)
    reason = f"what {reference[:200]!r} stands for, by plugin {first.owner}: {first.value.reason}"
    return first.value.reference, [Selection("model reference", first.value.reference, reason, rejected)]


def apply_plugin_proposals(
    args: UserArgs,
    sections: dict[str, dict[str, Any]],
    info: ModelInfo,
    platform: str,
    plugins: PluginManager,
) -> list[tuple[str, str, str]]:
    """Change ``sections`` as plugins propose, where the user said nothing; returns the decisions.

    Raises:
        PluginError: a proposal isn't one, or is for what can't be proposed, or has a value that isn't accepted.
    """
    changes: list[tuple[str, str, str]] = []
    for item in plugins.collect((tuple, list), corefw_propose, info, platform, args.explicit):
        for proposal in _checked(item.owner, item.value):
            key = f"{proposal.section}.{proposal.field}"
            why = f"plugin {item.owner}: {proposal.reason}"
            if key in args.explicit:
                given = str(args.values[key])
                changes.append((key, given, f"set by the user; {proposal.value} was asked for by {why}"))
                continue
            sections[proposal.section][proposal.field] = proposal.value
            changes.append((key, str(proposal.value), why))
    return changes


def _checked(owner: str, proposals: Sequence[object]) -> list[Proposal]:
    found = []
    for proposal in proposals:
        if not isinstance(proposal, Proposal):
            raise PluginError(f"plugin {owner} proposes a {type(proposal).__name__}; a proposal is a Proposal")
        key = f"{proposal.section}.{proposal.field}"
        if key not in _OPEN:
            raise PluginError(f"plugin {owner} can't propose {key[:80]!r}; {suggestion(key, _OPEN)}")
        try:
            check_setting(key, proposal.value, f"{key}, as plugin {owner} proposes it,")
        except ConfigError as error:
            raise PluginError(str(error)) from error
        found.append(proposal)
    return found
