"""The half in the engine core: which blocks are in files, which ones are worth writing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from corefw.errors import PluginError
from corefw.interfaces.kv_connector import (
    NOTHING_LEFT_TO_SEND,
    FinishedTransfer,
    KVRequest,
    KVRole,
    Matched,
    SchedulerConnector,
)
from corefw.messages.outputs import FinishReason
from corefw.messages.request import PlainDict
from corefw.messages.scheduling import SchedulerOutput
from corefw_sample_file_connector.store import Store

__all__ = ["FileScheduler"]


class FileScheduler(SchedulerConnector):
    """Matches full blocks by their chained hashes; writes each block in the step that fills it."""

    def __init__(self, root: str, mode: str, role: KVRole, block_size: int) -> None:
        self._root = root
        self._is_async = mode == "async"
        self._role = role
        self._block_size = block_size
        self._stores: list[Store] = []
        self._requests: dict[str, KVRequest] = {}
        # By request, its leading blocks that are in files or were handed to the worker.
        self._num_kept: dict[str, int] = {}
        self._loads: list[PlainDict] = []

    def receive_handshakes(self, handshakes: Sequence[PlainDict | None]) -> None:
        if None in handshakes:
            raise PluginError("a worker sent no fingerprint of its KV cache")
        self._stores = [Store(self._root, told["fingerprint"]) for told in handshakes if told is not None]

    def matched_tokens(self, request: KVRequest, num_local_tokens: int) -> Matched:
        if not self._role.consumes:
            return Matched(0)
        hashes = request.block_hashes
        first = stop = num_local_tokens // self._block_size
        while stop < len(hashes) and self._has(hashes[stop]):
            stop += 1
        return Matched((stop - first) * self._block_size, self._is_async)

    def after_alloc(self, request: KVRequest, num_local_tokens: int, num_external_tokens: int) -> None:
        size = self._block_size
        first, stop = num_local_tokens // size, -(-(num_local_tokens + num_external_tokens) // size)
        self._requests[request.request_id] = request
        self._num_kept[request.request_id] = stop if num_external_tokens else first
        if num_external_tokens:
            blocks = self._named(request, first, stop)
            load = {"request_id": request.request_id, "blocks": list(blocks), "is_async": self._is_async}
            self._loads.append(load)

    def build_metadata(self, scheduled: SchedulerOutput) -> PlainDict:
        loads, self._loads = self._loads, []
        saves = list(self._saves(scheduled)) if self._role.produces else []
        return {"loads": loads, "saves": saves}

    def request_finished(self, request: KVRequest, reason: FinishReason) -> FinishedTransfer:
        self._requests.pop(request.request_id, None)
        self._num_kept.pop(request.request_id, None)
        return NOTHING_LEFT_TO_SEND

    def cache_reset(self) -> None:
        for store in self._stores:
            store.clear()

    def _saves(self, scheduled: SchedulerOutput) -> Iterator[PlainDict]:
        """By request, the blocks that are full after this step and in no file."""
        cached = scheduled.cached_requests
        computed = dict(zip(cached.request_ids, cached.num_computed_tokens, strict=True))
        computed |= {new.request_id: new.num_computed_tokens for new in scheduled.new_requests}
        for request_id, num_tokens in scheduled.num_scheduled_tokens.items():
            first = self._num_kept[request_id]
            stop = (computed[request_id] + num_tokens) // self._block_size
            if stop <= first:
                continue
            self._num_kept[request_id] = stop
            request = self._requests[request_id]
            blocks = [(key, block_id) for key, block_id in self._named(request, first, stop) if not self._in_files(key)]
            if blocks:
                yield {"request_id": request_id, "blocks": blocks}

    def _named(self, request: KVRequest, first: int, stop: int) -> Iterator[tuple[str, int]]:
        """File name and id of the request's blocks ``first`` to ``stop``."""
        hashes, block_ids = request.block_hashes, request.block_ids[0]
        for index in range(first, stop):
            yield hashes[index].hex(), block_ids[index]

    def _has(self, block_hash: bytes) -> bool:
        return self._in_files(block_hash.hex())

    def _in_files(self, key: str) -> bool:
        return all(store.has(key) for store in self._stores)
