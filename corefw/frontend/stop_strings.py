"""Stop strings in a growing text. Nothing that belongs to one is ever given out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["StopMatch", "StopStrings"]


@dataclass(frozen=True, slots=True)
class StopMatch:
    """The end of an output.

    Attributes:
        stop: the string that ended it.
        text: what may still be given out before it.
    """

    stop: str
    text: str


class StopStrings:
    """Searches one output's text, piece by piece; the result doesn't depend on how the text is cut.

    The stop string whose last character comes first wins; of several that end at the same character the longest. That
    is the rule which needs no look ahead: with the last character the output ends. Held back is only a tail of the
    text that begins some stop string, so at most one character less than the longest has.

    Args:
        stops: not empty, each with at least one character.
        include: a match is part of the output.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""

    def push(self, text: str, *, may_end: bool = True) -> str | StopMatch:
        """The text that can be given out now, or the match that ends the output.

        Args:
            text: what follows what was pushed before.
            may_end: false while a match that ends in this piece must not end the output (``min_tokens``).
        """
        whole = self._held + text
        if may_end and text:
            match = self._first_match(whole, len(self._held))
            if match is not None:
                return match
        cut = self._hold_from(whole)
        self._held = whole[cut:]
        return whole[:cut]

    def flush(self) -> str:
        """What was held back; the output ended without a match."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, whole: str, num_old: int) -> StopMatch | None:
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            # A match must end in the new text: an older one was looked at before.
            begin = whole.find(stop, max(0, num_old - len(stop) + 1))
            if begin >= 0 and (best is None or (begin + len(stop), begin) < best[:2]):
                best = begin + len(stop), begin, stop
        if best is None:
            return None
        end, begin, stop = best
        return StopMatch(stop, whole[: end if self._include else begin])

    def _hold_from(self, whole: str) -> int:
        """Where the longest tail begins that is the beginning of a stop string, and not all of it."""
        cut = len(whole)
        for stop in self._stops:
            begin = whole.find(stop[0], max(0, len(whole) - len(stop) + 1))
            while 0 <= begin < cut:
                if stop.startswith(whole[begin:]):
                    cut = begin
                    break
                begin = whole.find(stop[0], begin + 1)
        return cut
