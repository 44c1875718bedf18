"""What an executor runs in its workers, and how it and they talk. Imports torch."""

from __future__ import annotations

from corefw.observability.logging import configure_logging, logging_settings
from corefw.runtime.distributed.groups import RankGroups
from corefw.runtime.distributed.worker_messages import (
    Answer,
    Call,
    Command,
    ExecuteModel,
    Initialize,
    MakeReport,
    SampleTokens,
    WorkerConfigure,
    joined,
)
from corefw.runtime.worker import Worker
from corefw.runtime.worker_process import CommandServer, build_worker

__all__ = [
    "Answer",
    "Call",
    "Command",
    "CommandServer",
    "ExecuteModel",
    "Initialize",
    "MakeReport",
    "RankGroups",
    "SampleTokens",
    "Worker",
    "WorkerConfigure",
    "build_worker",
    "configure_logging",
    "joined",
    "logging_settings",
]
