"""corefw: a plugin-first inference engine for large language models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corefw.llm import LLM
    from corefw.messages.sampling import SamplingParams

__all__ = ["LLM", "SamplingParams", "__version__"]

__version__ = "0.1.0"

_HOMES = {"LLM": "corefw.llm", "SamplingParams": "corefw.messages.sampling"}


def __getattr__(name: str) -> Any:
    """Import the public classes when they are first asked for: ``import corefw`` itself must cost nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    from corefw.collections_paused import collections_paused

    with collections_paused():
        return getattr(importlib.import_module(_HOMES[name]), name)
