"""What launchers of engine cores build on: a core as a child, and the memory in which its parent reads what it does."""

from __future__ import annotations

from corefw.engine.core_child import CoreChild
from corefw.engine.step_board import BoardMirror, BoardReader

__all__ = ["BoardMirror", "BoardReader", "CoreChild"]
