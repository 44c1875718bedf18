"""What ``corefw explain`` asks a process that may import torch, and what that answers."""

from __future__ import annotations

import msgspec

from corefw.config.device_description import DeviceDescription
from corefw.config.engine_config import EngineConfig
from corefw.plugin_system.process_report import ReportedSelection

__all__ = ["WorkerAnswer", "WorkerQuestion"]


class WorkerQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What to choose for, on which device when it isn't this machine's."""

    config: EngineConfig
    described: DeviceDescription | None
    search_path: list[str]


class WorkerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The choices, and what stopped them."""

    selections: list[ReportedSelection]
    problem: str | None = None
