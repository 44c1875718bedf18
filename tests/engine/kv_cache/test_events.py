from __future__ import annotations

from corefw.engine.kv_cache.events import KVEventRecorder
from corefw.engine.kv_cache.hashing import BlockHasher, cache_key
from corefw.engine.kv_cache.manager import KVCacheManager
from corefw.engine.kv_cache.pool import BlockPool
from corefw.messages.kv_events import BlockRemoved, BlockStored, CacheCleared, KVEvent
from tests.engine.kv_cache.layouts import full_spec, registry
from tests.engine.kv_cache.test_manager import compute, grow, make_request


def make_manager(num_blocks: int = 20, block_sizes: tuple[int, ...] = (4,)) -> tuple[KVCacheManager, list[KVEvent]]:
    events: list[KVEvent] = []
    specs = [full_spec(block_size) for block_size in block_sizes]
    manager = KVCacheManager(
        specs, registry(), num_blocks, BlockHasher(4), max_step_tokens=64, listeners=(events.append,)
    )
    return manager, events


def test_a_block_is_told_with_its_tokens_when_it_is_full_and_computed() -> None:
    manager, events = make_manager()
    request = make_request("a", range(6))
    compute(manager, request)
    first = BlockStored(block_hash=request.block_hashes[0], parent_hash=None, token_ids=[0, 1, 2, 3], group=0)
    assert events == [first]
    grow(manager, request, 2)
    assert events[1:] == [
        BlockStored(
            block_hash=request.block_hashes[1],
            parent_hash=request.block_hashes[0],
            token_ids=[4, 5, 6, 7],
            group=0,
        )
    ]


def test_every_group_tells_its_own_blocks() -> None:
    manager, events = make_manager(block_sizes=(4, 8))
    compute(manager, make_request("a", range(8)))
    told = [(event.group, event.token_ids) for event in events if isinstance(event, BlockStored)]
    assert told == [(0, [0, 1, 2, 3]), (0, [4, 5, 6, 7]), (1, list(range(8)))]


def test_contents_that_two_blocks_have_are_told_once_and_removed_with_the_last() -> None:
    events: list[KVEvent] = []
    pool = BlockPool(4, (events.append,))
    key = cache_key(b"hash", 3)
    one, other = pool.allocate(2)
    assert pool.cache(one, key)
    assert not pool.cache(other, key)
    pool.free([one])
    pool.allocate(2)
    assert events == []
    pool.free([other])
    pool.allocate(1)
    assert events == [BlockRemoved(block_hash=b"hash", group=3)]


def test_what_is_stored_and_not_removed_is_what_the_cache_finds() -> None:
    manager, events = make_manager(num_blocks=8)
    for start in range(0, 120, 10):
        request = make_request(f"r{start}", range(start % 40, start % 40 + 18))
        compute(manager, request)
        manager.free(request)
    known: set[tuple[bytes, int]] = set()
    for event in events:
        assert not isinstance(event, CacheCleared)
        entry = (event.block_hash, event.group)
        assert (entry in known) == isinstance(event, BlockRemoved)
        known ^= {entry}
    assert known == {entry for entry in known if manager.pool.lookup(cache_key(*entry)) is not None}
    assert len(known) == sum(block.cache_key is not None for block in manager.pool.blocks)


def test_a_reset_tells_that_everything_is_gone() -> None:
    manager, events = make_manager()
    request = make_request("a", range(4))
    compute(manager, request)
    assert not manager.reset_prefix_cache()
    assert not any(isinstance(event, CacheCleared) for event in events)
    manager.free(request)
    assert manager.reset_prefix_cache()
    assert events[-1] == CacheCleared()


def test_the_recorder_gives_each_event_once_and_numbers_them() -> None:
    recorder = KVEventRecorder()
    removed = [BlockRemoved(block_hash=bytes([number]), group=0) for number in range(3)]
    recorder(removed[0])
    recorder(removed[1])
    batch = recorder.take()
    assert (batch.first, batch.events) == (0, removed[:2])
    recorder(removed[2])
    batch = recorder.take()
    assert (batch.first, batch.events) == (2, removed[2:])
    assert recorder.take().events == []


def test_a_reader_that_is_too_slow_sees_a_gap_in_the_numbers() -> None:
    recorder = KVEventRecorder(max_events=2)
    for number in range(5):
        recorder(BlockRemoved(block_hash=bytes([number]), group=0))
    batch = recorder.take()
    assert batch.first == 3
    assert [event.block_hash for event in batch.events if isinstance(event, BlockRemoved)] == [b"\3", b"\4"]
