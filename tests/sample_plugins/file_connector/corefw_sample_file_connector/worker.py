"""The half beside the cache: copies pages to and from files."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import torch

from corefw.interfaces.kv_connector import KVCaches, LayerCache, WorkerConnector
from corefw.messages.kv_transfer import TransferResults
from corefw.messages.request import PlainDict
from corefw_sample_file_connector.store import Store

__all__ = ["FileWorker"]

Blocks = list[tuple[str, int]]


class FileWorker(WorkerConnector):
    """A file has a block's pages of all layers, in layer order.

    Loads within a step are read at its start and copied layer by layer; asynchronous ones run on a thread.
    """

    def __init__(self, root: str, delay_s: float) -> None:
        self._root = root
        self._delay_s = delay_s
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="file-connector")
        # (request id, blocks that weren't filled) of asynchronous loads that are over.
        self._done: SimpleQueue[tuple[str, list[int]]] = SimpleQueue()
        self._failed_blocks: list[int] = []
        self._read: list[tuple[int, bytes]] = []
        self._saves: Blocks = []
        self._parts: dict[str, list[bytes]] = {}

    def register_caches(self, caches: KVCaches) -> None:
        self._fingerprint = caches.fingerprint
        self._store = Store(self._root, caches.fingerprint)
        self._layers: dict[str, LayerCache] = dict(caches.layers)
        self._sizes = [layer.pages.shape[1] for layer in self._layers.values()]
        starts = [sum(self._sizes[:index]) for index in range(len(self._sizes))]
        self._places = dict(zip(self._layers, zip(starts, self._sizes, strict=True), strict=True))

    def handshake(self) -> PlainDict | None:
        return {"fingerprint": self._fingerprint}

    def start_load(self, metadata: PlainDict) -> None:
        self._parts, self._read, failed_ids = {}, [], set()
        for load in metadata["loads"]:
            if load["is_async"]:
                self._reader.submit(self._load, load["request_id"], load["blocks"])
                continue
            time.sleep(self._delay_s)
            lost = self._read_blocks(load["blocks"])
            if lost:
                failed_ids.add(load["request_id"])
                self._failed_blocks += lost
        # What such a request computes in this step rests on blocks that aren't there: it must not be kept.
        kept = (save["blocks"] for save in metadata["saves"] if save["request_id"] not in failed_ids)
        self._saves = [(key, block_id) for blocks in kept for key, block_id in blocks]

    def wait_layer(self, layer: str) -> None:
        for block_id, contents in self._read:
            self._fill(layer, block_id, contents)

    def save_layer(self, layer: str) -> None:
        pages = self._layers[layer].pages
        for key, block_id in self._saves:
            self._parts.setdefault(key, []).append(pages[block_id].cpu().numpy().tobytes())

    def wait_save(self) -> None:
        for key, parts in self._parts.items():
            if len(parts) == len(self._layers):  # a step that failed has only some layers
                self._store.write(key, b"".join(parts))
        self._parts, self._read, self._saves = {}, [], []

    def results(self) -> TransferResults | None:
        over = []
        while not self._done.empty():
            over.append(self._done.get_nowait())
        failed_blocks, self._failed_blocks = self._failed_blocks, []
        if not over and not failed_blocks:
            return None
        return TransferResults(
            finished_receiving=tuple(request_id for request_id, _ in over),
            failed_receiving=tuple(request_id for request_id, lost in over if lost),
            failed_blocks=(*failed_blocks, *(block_id for _, lost in over for block_id in lost)),
        )

    def shutdown(self) -> None:
        self._reader.shutdown(cancel_futures=True)

    def _read_blocks(self, blocks: Iterable[tuple[str, int]]) -> list[int]:
        """Read blocks for this step's layers; returns those that couldn't be read."""
        lost = []
        for key, block_id in blocks:
            contents = self._store.read(key, sum(self._sizes))
            if contents is None:
                lost.append(block_id)
            else:
                self._read.append((block_id, contents))
        return lost

    def _load(self, request_id: str, blocks: Blocks) -> None:
        """On the reader's thread: fill blocks that nobody else touches until they are reported."""
        lost = [block_id for _, block_id in blocks]
        try:
            time.sleep(self._delay_s)
            for key, block_id in blocks:
                contents = self._store.read(key, sum(self._sizes))
                if contents is not None:
                    for layer in self._layers:
                        self._fill(layer, block_id, contents)
                    lost.remove(block_id)
        finally:
            self._done.put((request_id, lost))

    def _fill(self, layer: str, block_id: int, contents: bytes) -> None:
        start, size = self._places[layer]
        page = torch.frombuffer(bytearray(contents[start : start + size]), dtype=torch.uint8)
        self._layers[layer].pages[block_id].copy_(page)
