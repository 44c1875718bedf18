"""The media tracker: which items a request has, in their order, and how many of each modality it may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from corefw.errors import RequestError
from corefw.sdk.rendering import random_mark
from corefw_io_multimodal.sources import Encoded

__all__ = ["MediaTracker", "TrackedItem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedItem:
    """An item that isn't read yet.

    Attributes:
        mark: stands for it in the message's text.
        modality: ``image``, ``audio`` or ``video``.
        path: of the part it came in.
        source: where its bytes are; None where the id stands for an item sent earlier.
        media_id: the client's id; None where there is none.
    """

    mark: str
    modality: str
    path: str
    source: str | Encoded | None = None
    media_id: str | None = None


class MediaTracker:
    """The items of one request. How they are read, one after the other or at once, is no matter of its.

    Args:
        limits: modalities that are taken, each with the number of items.
    """

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._limits = limits
        self._counts: Counter[str] = Counter()
        self.items: list[TrackedItem] = []

    def add(self, modality: str, path: str, source: str | Encoded | None, media_id: str | None) -> str:
        """Add the next item of the request; returns its mark.

        Raises:
            RequestError: the model doesn't take its modality, or not so many.
        """
        limit = self._limits.get(modality, 0)
        if not limit:
            taken = " and ".join(("text", *sorted(name for name, count in self._limits.items() if count)))
            raise RequestError(f"the model takes {taken} only, no {modality} input", param=f"{path}.type")
        self._counts[modality] += 1
        if self._counts[modality] > limit:
            raise RequestError(f"the model takes at most {limit} {modality} items in a request", param=path)
        item = TrackedItem(mark=random_mark(), modality=modality, path=path, source=source, media_id=media_id)
        self.items.append(item)
        return item.mark

    @property
    def counts(self) -> Mapping[str, int]:
        """Items so far, by modality."""
        return dict(self._counts)
