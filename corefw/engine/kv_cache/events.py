"""Keeps what the prefix cache did until somebody asks."""

from __future__ import annotations

from collections import deque

from corefw.messages.kv_events import KVEvent, KVEventBatch

__all__ = ["MAX_KEPT_EVENTS", "KVEventRecorder"]

MAX_KEPT_EVENTS = 65_536


class KVEventRecorder:
    """A listener of the pool with bounded memory: of unread events the oldest are dropped.

    Args:
        max_events: unread events that are kept.
    """

    def __init__(self, max_events: int = MAX_KEPT_EVENTS) -> None:
        self._unread: deque[KVEvent] = deque(maxlen=max_events)
        self._num_events = 0

    def __call__(self, event: KVEvent) -> None:
        """Take note of an event."""
        self._unread.append(event)
        self._num_events += 1

    def take(self) -> KVEventBatch:
        """The unread events."""
        batch = KVEventBatch(first=self._num_events - len(self._unread), events=list(self._unread))
        self._unread.clear()
        return batch
