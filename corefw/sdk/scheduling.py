"""The core's scheduler, for schedulers that derive from it."""

from __future__ import annotations

from corefw.engine.scheduler.scheduler import DefaultScheduler

__all__ = ["DefaultScheduler"]
