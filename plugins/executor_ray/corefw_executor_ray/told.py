"""What Ray tells of a death, in one line."""

from __future__ import annotations

from ray.exceptions import RayError

__all__ = ["cause_of"]

_WORDS = ("error", "exit", "kill")
_GUESSES = "Some common causes"  # what could be the matter with any program; the same of each death


def cause_of(error: RayError) -> str:
    """The last line that names a cause; Ray's messages have many that don't."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if any(word in line.lower() for word in _WORDS)]
    told = (causes or lines or [type(error).__name__])[-1]
    return told.partition(_GUESSES)[0].rstrip(" .")[:300]
