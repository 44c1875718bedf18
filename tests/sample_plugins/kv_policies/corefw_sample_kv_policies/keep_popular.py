"""Reuses the block that was wanted least often; of equals the one unused for longest."""

from __future__ import annotations

from collections import Counter

from corefw.interfaces.hooks.kv import EvictionPolicy, ReusableBlock
from corefw.sdk.plugins import hookimpl


class KeepPopular(EvictionPolicy):
    """Counts by contents how often a block was let go of."""

    def __init__(self) -> None:
        self._uses: Counter[bytes] = Counter()
        self._free: dict[int, bytes] = {}

    def added(self, block: ReusableBlock) -> None:
        self._uses[block.block_hash] += 1
        self._free[block.block_id] = block.block_hash

    def removed(self, block_id: int) -> None:
        self._free.pop(block_id, None)

    def choose(self) -> int:
        return min(self._free, key=lambda block_id: self._uses[self._free[block_id]])

    def cleared(self) -> None:
        self._free.clear()
        self._uses.clear()


@hookimpl
def corefw_kv_eviction_policy() -> EvictionPolicy:
    return KeepPopular()
