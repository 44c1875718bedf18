from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from corefw.engine.kv_cache.block import KVCacheBlock
from corefw.engine.kv_cache.pool import BlockPool
from corefw.errors import EngineError


def cached_block(pool: BlockPool, key: bytes) -> KVCacheBlock:
    (block,) = pool.allocate(1)
    pool.cache(block, key)
    return block


def test_the_null_block_is_block_zero_and_never_handed_out() -> None:
    pool = BlockPool(4)
    assert [block.block_id for block in pool.allocate(3)] == [1, 2, 3]
    assert pool.null_block.block_id == 0


def test_the_null_block_is_neither_freed_nor_cached_nor_held() -> None:
    pool = BlockPool(4)
    pool.cache(pool.null_block, b"k")
    pool.touch([pool.null_block])
    pool.free([pool.null_block])
    assert pool.lookup(b"k") is None
    assert (pool.null_block.ref_count, pool.num_free_blocks) == (0, 3)


@pytest.mark.parametrize("num_blocks", [0, 1])
def test_a_pool_without_room_for_a_real_block_is_refused(num_blocks: int) -> None:
    with pytest.raises(EngineError, match="needs 2 blocks"):
        BlockPool(num_blocks)


def test_more_blocks_than_are_free_are_refused_and_nothing_is_taken() -> None:
    pool = BlockPool(3)
    with pytest.raises(EngineError, match="3 KV blocks wanted, 2 are free"):
        pool.allocate(3)
    assert pool.num_free_blocks == 2


def test_blocks_without_contents_are_reused_last_in_first_out() -> None:
    pool = BlockPool(5)
    one, two, _ = pool.allocate(3)
    pool.free([one])
    pool.free([two])
    assert pool.free_block_ids() == [2, 1, 4]


def test_cached_blocks_are_reused_first_in_first_out_after_all_others() -> None:
    pool = BlockPool(5)
    first, second = cached_block(pool, b"1"), cached_block(pool, b"2")
    (plain,) = pool.allocate(1)
    pool.free([second])
    pool.free([first])
    pool.free([plain])
    assert pool.free_block_ids() == [plain.block_id, 4, second.block_id, first.block_id]


def test_a_cached_block_that_nobody_holds_is_found_until_it_is_reused() -> None:
    pool = BlockPool(3)
    block = cached_block(pool, b"k")
    pool.free([block])
    assert pool.lookup(b"k") is block
    pool.allocate(2)
    assert pool.lookup(b"k") is None


def test_a_touched_block_is_not_reused() -> None:
    pool = BlockPool(3)
    block = cached_block(pool, b"k")
    pool.free([block])
    pool.touch([block])
    assert block not in pool.allocate(1)
    assert pool.num_free_blocks == 0


def test_a_shared_block_is_free_only_when_its_last_holder_lets_go() -> None:
    pool = BlockPool(3)
    block = cached_block(pool, b"k")
    pool.touch([block])
    pool.free([block])
    assert pool.num_free_blocks == 1
    pool.free([block])
    assert pool.num_free_blocks == 2


def test_freeing_a_free_block_is_an_error() -> None:
    pool = BlockPool(3)
    (block,) = pool.allocate(1)
    pool.free([block])
    with pytest.raises(EngineError, match="freed once too often"):
        pool.free([block])


def test_a_block_that_gets_another_key_loses_the_old_one() -> None:
    pool = BlockPool(3)
    block = cached_block(pool, b"part")
    pool.cache(block, b"whole")
    assert pool.lookup(b"part") is None
    assert pool.lookup(b"whole") is block


def test_the_cache_is_not_reset_while_a_block_is_held() -> None:
    pool = BlockPool(3)
    block = cached_block(pool, b"k")
    assert not pool.reset_cache()
    assert pool.lookup(b"k") is block
    pool.free([block])
    assert pool.reset_cache()
    assert pool.lookup(b"k") is None
    assert pool.num_free_blocks == 2


def test_usage_counts_held_blocks_and_not_cached_ones() -> None:
    pool = BlockPool(5)
    block = cached_block(pool, b"k")
    assert pool.usage == 0.25
    pool.free([block])
    assert pool.usage == 0.0


class PoolMachine(RuleBasedStateMachine):
    """Holders come and go; what each holds is known from outside the pool."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(8)
        self.holders: list[list[KVCacheBlock]] = []
        self.keys: dict[int, bytes] = {}

    @rule(num_blocks=st.integers(1, 3))
    def allocate(self, num_blocks: int) -> None:
        if num_blocks > self.pool.num_free_blocks:
            return
        order = self.pool.free_block_ids()
        blocks = self.pool.allocate(num_blocks)
        assert [block.block_id for block in blocks] == order[:num_blocks]
        for block in blocks:
            self.keys.pop(block.block_id, None)
        self.holders.append(blocks)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), key=st.sampled_from([b"a", b"b", b"c"]))
    def cache(self, data: st.DataObject, key: bytes) -> None:
        block = data.draw(st.sampled_from(data.draw(st.sampled_from(self.holders))))
        self.pool.cache(block, key)
        self.keys[block.block_id] = key

    @rule(key=st.sampled_from([b"a", b"b", b"c"]))
    def hit(self, key: bytes) -> None:
        block = self.pool.lookup(key)
        if block is not None:
            self.pool.touch([block])
            self.holders.append([block])

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        blocks = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        self.pool.free(blocks[::-1])

    @rule()
    def reset(self) -> None:
        if self.pool.reset_cache():
            self.keys.clear()
        else:
            assert self.holders

    @invariant()
    def every_block_is_free_or_held_as_often_as_counted(self) -> None:
        held = [block.block_id for blocks in self.holders for block in blocks]
        free = self.pool.free_block_ids()
        assert len(free) == len(set(free)) == self.pool.num_free_blocks
        assert sorted({*held, *free}) == list(range(1, 8))
        assert not set(held) & set(free)
        for block in self.pool.blocks[1:]:
            assert block.ref_count == held.count(block.block_id)

    @invariant()
    def the_cache_finds_exactly_what_was_cached_and_not_reused(self) -> None:
        for key in (b"a", b"b", b"c"):
            expected = {block_id for block_id, known in self.keys.items() if known == key}
            found = self.pool.lookup(key)
            assert found.block_id in expected if found else not expected

    def teardown(self) -> None:
        for blocks in self.holders:
            self.pool.free(blocks)
        assert self.pool.num_free_blocks == 7
        assert self.pool.usage == 0.0


TestPool = PoolMachine.TestCase
TestPool.settings = settings(deadline=None, derandomize=True, max_examples=60, stateful_step_count=40)
