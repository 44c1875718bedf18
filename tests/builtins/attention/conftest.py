from __future__ import annotations

from tests.models.threads import one_thread

__all__ = ["one_thread"]
