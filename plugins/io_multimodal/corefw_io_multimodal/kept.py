"""Items that clients gave an id: a later request may name the id alone."""

from __future__ import annotations

import threading
from collections import OrderedDict

from corefw.interfaces.hooks.media import MediaItem

__all__ = ["KeptItems"]

_Key = tuple[str | None, str, str]


class KeptItems:
    """The items used last, up to a number of bytes. Any thread may use it.

    Args:
        max_bytes: of all together; 0 keeps nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._items: OrderedDict[_Key, MediaItem] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, salt: str | None, modality: str, media_id: str) -> MediaItem | None:
        """The item, or None. What was kept under another cache salt isn't found."""
        key = (salt, modality, media_id)
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
            return self._items.get(key)

    def put(self, salt: str | None, media_id: str, item: MediaItem) -> None:
        """Keep an item, in the place of one that had the id."""
        key = (salt, item.modality, media_id)
        size = _num_bytes(item)
        if size > self._max_bytes:
            return
        with self._lock:
            if (former := self._items.pop(key, None)) is not None:
                self._num_bytes -= _num_bytes(former)
            self._items[key] = item
            self._num_bytes += size
            while self._num_bytes > self._max_bytes:
                self._num_bytes -= _num_bytes(self._items.popitem(last=False)[1])


def _num_bytes(item: MediaItem) -> int:
    return (0 if item.pixels is None else item.pixels.nbytes) + len(item.content or b"") + 1024
