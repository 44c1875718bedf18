"""What an executor and its workers tell each other, as the core's own executors do, and futures."""

from __future__ import annotations

from corefw.messages.control_channel import follow_search_path, search_path
from corefw.observability.logging import logging_settings
from corefw.runtime.distributed.futures import AskedFuture, settled
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
    cause,
    joined,
)

__all__ = [
    "Answer",
    "AskedFuture",
    "Call",
    "Command",
    "ExecuteModel",
    "Failure",
    "Initialize",
    "MakeReport",
    "SampleTokens",
    "WorkerConfigure",
    "cause",
    "follow_search_path",
    "joined",
    "logging_settings",
    "search_path",
    "settled",
]
