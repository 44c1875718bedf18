"""The start-up conversation between front end and core process, over a socket pair that exists before anything else."""

from __future__ import annotations

import socket

import msgspec

from corefw.config.engine_config import EngineConfig
from corefw.config.runtime_plan import RuntimePlan
from corefw.messages.control_channel import Channel, StartFailed

__all__ = ["Addresses", "AddressesWanted", "Channel", "Configure", "ControlChannel", "Progress", "Ready", "StartFailed"]


class Configure(msgspec.Struct, frozen=True, kw_only=True, tag="configure"):
    """To the core: what to build.

    Attributes:
        config: the resolved configuration, the resolved plugin set in it.
        log_level, log_format: of the core's records.
        search_path: the front end's ``sys.path``, so that import paths mean the same in both processes.
    """

    config: EngineConfig
    log_level: str
    log_format: str = "text"
    search_path: tuple[str, ...]


class AddressesWanted(msgspec.Struct, frozen=True, tag="addresses_wanted"):
    """From the core: it can connect at once. Before that there is no folder of sockets that could be left behind."""


class Addresses(msgspec.Struct, frozen=True, kw_only=True, tag="addresses"):
    """To the core: where the front end listens.

    Attributes:
        directory: private folder of the sockets; gone once both are connected. None where they are on a network.
        requests: the ROUTER that requests come from.
        outputs: the PULL that takes outputs.
        key: public key of both, without which nobody is let in; None where the folder keeps others out.
    """

    directory: str | None
    key: bytes | None = None
    requests: str
    outputs: str


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """From the core: what it does now."""

    stage: str


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """From the core: it takes requests. The plan carries every decision taken in core and workers."""

    plan: RuntimePlan


StartupMessage = Configure | AddressesWanted | Addresses | Progress | Ready | StartFailed


class ControlChannel(Channel[StartupMessage]):
    """Carries the conversation."""

    def __init__(self, stream: socket.socket) -> None:
        super().__init__(stream, StartupMessage)
