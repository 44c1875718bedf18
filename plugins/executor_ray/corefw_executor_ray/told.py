"""What Ray tells of a death, in one line."""

from __future__ import annotations

from ray.exceptions import RayError

__all__ = ["cause_of"]

_WORDS = ("error", "exit", "kill")


def cause_of(error: RayError) -> str:
    """The last line that names a cause; Ray's messages have many that don't."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if any(word in line.lower() for word in _WORDS)]
    return (causes or lines or [type(error).__name__])[-1][:300]
