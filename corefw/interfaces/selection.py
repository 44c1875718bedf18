"""How every choice is recorded: who won, and for each other candidate why not."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Rejected", "Selection"]


@dataclass(frozen=True, slots=True)
class Rejected:
    """A candidate that was asked and not taken."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """The result of asking candidates once, at start.

    Attributes:
        what: the thing chosen (``platform``, ``attention backend`` …).
        chosen: name of the winner.
        reason: why it won (``first that supports the request``, ``named by --dtype`` …).
        rejected: everybody else, with the sentence why not.
    """

    what: str
    chosen: str
    reason: str
    rejected: tuple[Rejected, ...] = ()

    @property
    def why(self) -> str:
        """Why this one, and why none of the others."""
        return "; ".join((self.reason, *(f"not {other.name}: {other.reason}" for other in self.rejected)))

    def __str__(self) -> str:
        return f"{self.what}: {self.chosen} ({self.why})"
