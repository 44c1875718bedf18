"""The core's scheduler, where its entry point finds it."""

from __future__ import annotations

from corefw.engine.scheduler.scheduler import DefaultScheduler

__all__ = ["DefaultScheduler"]
