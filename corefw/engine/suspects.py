"""Which request makes the core crash: found out by letting ever fewer of the suspects run."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Finding", "Suspects"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a crash taught.

    Attributes:
        culprit: the request that crashed the core while it ran alone.
        is_news: whether the circle has become smaller, so that trying again isn't in vain.
    """

    culprit: str | None = None
    is_news: bool = False


class Suspects:
    """Suspects are the requests of a step in which the core crashed, until they have got a token in a new core.

    A second crash with suspects in it puts these on trial: half of them run, then the other half; a half that crashes
    is halved again, until one is alone. Nobody else comes into the core meanwhile, except those whom the trial has
    cleared. Only who crashes the core all alone is the culprit: of several in a step nobody knows which it was.
    """

    def __init__(self) -> None:
        self._of_last_crash: set[str] = set()
        self._groups: deque[list[str]] = deque()

    @property
    def group(self) -> Sequence[str] | None:
        """Those who are to run now; None where anybody may."""
        return tuple(self._groups[0]) if self._groups else None

    def crashed(self, ran: Sequence[str]) -> Finding:
        """The core has crashed in a step with these requests."""
        if self._groups:
            return self._group_crashed(ran)
        again = [request_id for request_id in ran if request_id in self._of_last_crash]
        if not again:
            self._of_last_crash = set(ran)
            return Finding()
        self._of_last_crash = set()
        self._groups.extend(_halves(again))
        return Finding(is_news=True)

    def clear(self, request_id: str) -> bool:
        """A request has got a token or has ended. True where others may run because of it."""
        self._of_last_crash.discard(request_id)
        for group in self._groups:
            if request_id in group:
                group.remove(request_id)
                break
        else:
            return False
        was_first = not self._groups[0]
        self._groups = deque(group for group in self._groups if group)
        return was_first

    def _group_crashed(self, ran: Sequence[str]) -> Finding:
        group = self._groups[0]
        hit = [request_id for request_id in group if request_id in set(ran)]
        if not hit:
            return Finding()
        self._groups.popleft()
        spared = [request_id for request_id in group if request_id not in hit]
        is_alone = len(ran) == 1
        parts = ([] if is_alone else _halves(hit)) + ([spared] if spared else [])
        self._groups.extendleft(reversed(parts))
        return Finding(culprit=hit[0] if is_alone else None, is_news=True)


def _halves(ids: list[str]) -> list[list[str]]:
    middle = (len(ids) + 1) // 2
    return [half for half in (ids[:middle], ids[middle:]) if half]
