"""What an executor runs in its workers. Imports torch."""

from __future__ import annotations

from corefw.runtime.worker import Worker

__all__ = ["Worker"]
