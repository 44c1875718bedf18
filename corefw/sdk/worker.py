"""What an executor runs in its workers. Imports torch."""

from __future__ import annotations

from corefw.observability.logging import configure_logging
from corefw.runtime.distributed.groups import RankGroups
from corefw.runtime.worker import Worker
from corefw.runtime.worker_process import CommandServer, build_worker

__all__ = ["CommandServer", "RankGroups", "Worker", "build_worker", "configure_logging"]
