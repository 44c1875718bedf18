"""A KV block's bookkeeping, and the list of blocks that nobody uses."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["FreeBlockQueue", "KVCacheBlock"]


class KVCacheBlock:
    """What is known of one block of the pool.

    Attributes:
        block_id: index of the page in every layer's buffer.
        ref_count: requests that hold it.
        cache_key: under which the prefix cache knows the contents; None when it doesn't.
        is_null: stands for "no block needed here"; never allocated, freed or cached.
    """

    __slots__ = ("block_id", "cache_key", "is_null", "next_free", "prev_free", "ref_count")

    def __init__(self, block_id: int, *, is_null: bool = False) -> None:
        self.block_id = block_id
        self.is_null = is_null
        self.ref_count = 0
        self.cache_key: bytes | None = None
        self.prev_free: KVCacheBlock | None = None
        self.next_free: KVCacheBlock | None = None

    def __repr__(self) -> str:
        cached = "" if self.cache_key is None else ", cached"
        return f"KVCacheBlock({self.block_id}, refs {self.ref_count}{cached})"


class FreeBlockQueue:
    """Free blocks in the order in which they are reused, doubly linked so that a cache hit leaves in O(1).

    The links are in the blocks themselves; a block is in the queue exactly while its links are set.
    """

    def __init__(self, blocks: list[KVCacheBlock]) -> None:
        self._head = KVCacheBlock(-1)
        self._tail = KVCacheBlock(-1)
        self._head.next_free = self._tail
        self._tail.prev_free = self._head
        self._num_blocks = 0
        for block in blocks:
            self.append(block)

    def __len__(self) -> int:
        return self._num_blocks

    def __iter__(self) -> Iterator[KVCacheBlock]:
        block = self._head.next_free
        while block is not None and block is not self._tail:
            yield block
            block = block.next_free

    def pop(self) -> KVCacheBlock:
        """Take the block to reuse next. The queue must not be empty."""
        block = self._head.next_free
        assert block is not None
        self.remove(block)
        return block

    def pop_many(self, num_blocks: int) -> list[KVCacheBlock]:
        """The next blocks to reuse; there must be so many."""
        taken: list[KVCacheBlock] = []
        block = self._head.next_free
        for _ in range(num_blocks):
            assert block is not None
            after = block.next_free
            block.prev_free = block.next_free = None
            taken.append(block)
            block = after
        assert block is not None
        self._head.next_free, block.prev_free = block, self._head
        self._num_blocks -= num_blocks
        return taken

    def remove(self, block: KVCacheBlock) -> None:
        """Take a block out of the middle."""
        before, after = block.prev_free, block.next_free
        assert before is not None, f"{block} is not free"
        assert after is not None, f"{block} is not free"
        before.next_free, after.prev_free = after, before
        block.prev_free = block.next_free = None
        self._num_blocks -= 1

    def prepend(self, block: KVCacheBlock) -> None:
        """Add a block to be reused first."""
        after = self._head.next_free
        assert after is not None
        self._link(self._head, block, after)

    def append(self, block: KVCacheBlock) -> None:
        """Add a block to be reused last."""
        before = self._tail.prev_free
        assert before is not None
        self._link(before, block, self._tail)

    def cleared(self) -> None:
        """Note that no block has contents any more."""

    def _link(self, before: KVCacheBlock, block: KVCacheBlock, after: KVCacheBlock) -> None:
        assert block.prev_free is None, f"{block} is free already"
        block.prev_free, block.next_free = before, after
        before.next_free = after.prev_free = block
        self._num_blocks += 1
