"""What plugins in the core and in workers tell the front end beside outputs."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["PluginEvent"]


class PluginEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened.

    Attributes:
        topic: ``plugin.topic``.
        data: plain data.
        time_s: ``time.time()`` where it happened.
        process: ``engine_core`` or ``worker``.
    """

    topic: str
    data: Any
    time_s: float
    process: str
