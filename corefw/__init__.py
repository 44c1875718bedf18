"""corefw: a plugin-first inference engine for large language models."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
