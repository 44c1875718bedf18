"""The marks by which hooks and their implementations are known."""

from __future__ import annotations

from typing import Final

import pluggy

__all__ = ["HOOK_PREFIX", "PROJECT", "hookimpl", "hookspec"]

PROJECT: Final = "corefw"
HOOK_PREFIX: Final = "corefw_"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
