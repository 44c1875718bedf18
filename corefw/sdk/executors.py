"""What an executor and its workers tell each other, as the core's own executors do: plain data, no code."""

from __future__ import annotations

from corefw.observability.logging import logging_settings
from corefw.runtime.distributed.worker_messages import (
    Answer,
    Call,
    Command,
    ExecuteModel,
    Failure,
    Initialize,
    MakeReport,
    SampleTokens,
    WorkerConfigure,
    joined,
)

__all__ = [
    "Answer",
    "Call",
    "Command",
    "ExecuteModel",
    "Failure",
    "Initialize",
    "MakeReport",
    "SampleTokens",
    "WorkerConfigure",
    "joined",
    "logging_settings",
]
