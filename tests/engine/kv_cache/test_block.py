from __future__ import annotations

import pytest

from corefw.engine.kv_cache.block import FreeBlockQueue, KVCacheBlock


def make_queue(num_blocks: int) -> tuple[FreeBlockQueue, list[KVCacheBlock]]:
    blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
    return FreeBlockQueue(blocks), blocks


def ids(queue: FreeBlockQueue) -> list[int]:
    return [block.block_id for block in queue]


def test_blocks_leave_in_the_order_in_which_they_were_appended() -> None:
    queue, _ = make_queue(3)
    assert [queue.pop().block_id for _ in range(3)] == [0, 1, 2]
    assert len(queue) == 0


def test_a_prepended_block_leaves_first() -> None:
    queue, _ = make_queue(2)
    queue.prepend(KVCacheBlock(7))
    assert ids(queue) == [7, 0, 1]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_block_can_be_taken_out_anywhere_and_put_back(place: int) -> None:
    queue, blocks = make_queue(3)
    queue.remove(blocks[place])
    assert ids(queue) == [i for i in range(3) if i != place]
    queue.append(blocks[place])
    assert ids(queue)[-1] == place
    assert len(queue) == 3


def test_a_block_is_never_twice_in_the_queue() -> None:
    queue, blocks = make_queue(2)
    with pytest.raises(AssertionError, match="is free already"):
        queue.append(blocks[0])


def test_a_block_that_is_not_in_the_queue_can_not_be_taken_out() -> None:
    queue, _ = make_queue(2)
    with pytest.raises(AssertionError, match="is not free"):
        queue.remove(KVCacheBlock(5))
