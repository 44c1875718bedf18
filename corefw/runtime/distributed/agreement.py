"""Ranks that no parent gave one configuration compare theirs, and refuse to start where they differ."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from corefw import __version__
from corefw.errors import ConfigError

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig, ResolvedPlugin
    from corefw.runtime.distributed.rank_group import PlainGroup

__all__ = ["check_agreement", "described", "differences"]

_ABSENT = "absent"
_MAX_SHOWN = 5
_MAX_VALUE = 80
# What machines may differ in: where the files lie, and what was said of the choices. Choices count, words don't.
_OWN_MATTERS = ("decisions", "fingerprint", "model_info.files", "plugins.resolved")
# May hold secrets: compared by their hash.
_HIDDEN = ("plugin_settings", "plugin_config")


def check_agreement(world: PlainGroup, config: EngineConfig) -> None:
    """Compare configuration and plugin set over all ranks; every rank raises, or none.

    Raises:
        ConfigError: they differ; names what, with the values and ranks.
    """
    mine = described(config)
    digest = hashlib.sha256(msgspec.json.encode(sorted(mine.items()))).hexdigest()
    if len(set(world.all_gather_object(digest))) == 1:
        return
    found = differences(world.all_gather_object(mine))
    more = f"; and {len(found) - _MAX_SHOWN} more" if len(found) > _MAX_SHOWN else ""
    shown = "; ".join(found[:_MAX_SHOWN])
    raise ConfigError(f"the ranks weren't started alike: {shown}{more}. Install and set the same on every rank")


def described(config: EngineConfig) -> dict[str, str]:
    """Everything that has to be equal over the ranks, as short texts by name."""
    plain = msgspec.to_builtins(config, builtin_types=(bytes,), order="sorted")
    texts = dict(_leaves(plain, ""))
    texts["corefw"] = __version__
    texts |= {_name_of(plugin): _value_of(plugin) for plugin in config.plugins.resolved}
    return texts


def differences(ranks: Sequence[Mapping[str, str]]) -> list[str]:
    """A sentence for each name that the ranks don't have one value for."""
    names = sorted({name for each in ranks for name in each})
    told = []
    for name in names:
        holders: dict[str, list[int]] = {}
        for rank, each in enumerate(ranks):
            holders.setdefault(each.get(name, _ABSENT), []).append(rank)
        if len(holders) > 1:
            parts = (f"{value[:_MAX_VALUE]} on {_ranks(members)}" for value, members in holders.items())
            told.append(f"{name} is {', '.join(parts)}")
    return told


def _ranks(members: Sequence[int]) -> str:
    return f"rank{'s' if len(members) > 1 else ''} {', '.join(map(str, members))}"


def _leaves(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if name in _OWN_MATTERS:
        return
    if isinstance(value, dict) and value and name.rpartition(".")[2] not in _HIDDEN:
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else str(key))
        return
    text = msgspec.json.encode(value).decode()
    hidden = name.rpartition(".")[2] in _HIDDEN
    yield name, _hash(text) if hidden or len(text) > _MAX_VALUE else text


def _hash(text: str) -> str:
    return f"something with hash {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _name_of(plugin: ResolvedPlugin) -> str:
    return f"plugin {plugin.name!r} ({plugin.group})"


def _value_of(plugin: ResolvedPlugin) -> str:
    return f"{plugin.value} of {plugin.distribution} {plugin.version}"
