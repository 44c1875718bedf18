"""Writes what the prefix cache does to the file that ``COREFW_SAMPLE_KV_EVENTS`` names, one JSON object a line."""

from __future__ import annotations

import json
import os
from pathlib import Path

from corefw.interfaces.hooks.kv import KVEventSubscriber
from corefw.messages.kv_events import BlockRemoved, BlockStored
from corefw.sdk.plugins import hookimpl


class EventFile(KVEventSubscriber):
    """Appends, so that a reader may follow."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def stored(self, event: BlockStored) -> None:
        parent = event.parent_hash.hex() if event.parent_hash else None
        self._write(event="stored", block=event.block_hash.hex(), parent=parent, tokens=event.token_ids)

    def removed(self, event: BlockRemoved) -> None:
        self._write(event="removed", block=event.block_hash.hex())

    def cleared(self) -> None:
        self._write(event="cleared")

    def _write(self, **fields: object) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(fields) + "\n")


@hookimpl
def corefw_kv_event_subscriber() -> KVEventSubscriber | None:
    path = os.environ.get("COREFW_SAMPLE_KV_EVENTS")
    return EventFile(Path(path)) if path else None
