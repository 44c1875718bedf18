"""What a house agrees on: short names of its models, and how many requests one of its machines runs at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from corefw.interfaces.hooks.configuration import ModelReference, PluginSettings
from corefw.interfaces.platform import Proposal
from corefw.sdk.config import EngineConfig
from corefw.sdk.plugins import hookimpl


class House(msgspec.Struct, frozen=True):
    """What a house agrees on."""

    models: dict[str, str] = {}
    seats: Annotated[int, msgspec.Meta(ge=1)] = 4
    generation: str = "first"


_house = House()


@hookimpl
def corefw_config_section() -> type[House]:
    return House


@hookimpl
def corefw_configured(settings: PluginSettings) -> None:
    global _house
    _house = settings.of(House)


@hookimpl
def corefw_resolve_model(reference: str) -> ModelReference | None:
    path = _house.models.get(reference)
    return None if path is None else ModelReference(path, "it is in the house's list")


@hookimpl
def corefw_propose(explicit: frozenset[str]) -> Sequence[Proposal]:
    reason = f"the house has {_house.seats} seats"
    seats = Proposal("scheduler", "max_num_seqs", _house.seats, reason)
    if "scheduler.max_num_batched_tokens" in explicit:
        return [seats]
    return [seats, Proposal("scheduler", "max_num_batched_tokens", 64 * _house.seats, reason)]


@hookimpl
def corefw_fingerprint(config: EngineConfig) -> str:
    return f"{_house.generation} generation of {config.model_info.architecture}"
