from __future__ import annotations

from collections.abc import Sequence

import pytest

from corefw.engine.kv_cache.hashing import BlockHasher
from corefw.engine.kv_cache.manager import KVCacheManager, PrefixHit
from corefw.engine.request import Request
from corefw.errors import ConfigError, EngineError
from corefw.interfaces.kv_cache import KVCacheSpec
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from tests.engine.kv_cache.layouts import Window, WindowSpec, full_spec, registry


def make_manager(
    num_blocks: int = 20, specs: Sequence[KVCacheSpec] = (full_spec(),), hash_block: int = 4
) -> KVCacheManager:
    return KVCacheManager(specs, registry(), num_blocks, BlockHasher(hash_block), max_step_tokens=64)


def make_request(name: str, tokens: Sequence[int], salt: str | None = None) -> Request:
    params = SamplingParams(max_tokens=1000)
    return Request(EngineCoreRequest(request_id=name, prompt_ids=list(tokens), params=params, cache_salt=salt))


def compute(manager: KVCacheManager, request: Request, num_tokens: int | None = None) -> PrefixHit:
    """Take a request's prefix hit, and compute it up to that many tokens, as a step and its update do."""
    hit = manager.get_computed_blocks(request)
    end = request.num_tokens if num_tokens is None else num_tokens
    assert manager.allocate_slots(request, end - hit.num_tokens, hit) is not None
    request.num_computed_tokens = end
    manager.cache_blocks(request)
    return hit


def grow(manager: KVCacheManager, request: Request, num_tokens: int) -> None:
    for _ in range(num_tokens):
        request.token_ids.append(len(request.token_ids))
        assert manager.allocate_slots(request, 1) is not None
        request.num_computed_tokens += 1
        manager.cache_blocks(request)


def test_slots_are_new_blocks_only_where_the_last_one_is_full() -> None:
    manager, request = make_manager(), make_request("a", range(6))
    assert manager.allocate_slots(request, 6) == [[1, 2]]
    request.num_computed_tokens = 6
    assert manager.allocate_slots(request, 2) == [[]]
    request.num_computed_tokens = 8
    assert manager.allocate_slots(request, 1) == [[3]]
    assert manager.block_ids(request) == [[1, 2, 3]]


def test_without_enough_blocks_nothing_is_taken() -> None:
    manager = make_manager(num_blocks=4)
    compute(manager, make_request("a", range(8)))
    late = make_request("b", range(20, 26))
    assert manager.allocate_slots(late, 6) is None
    assert manager.block_ids(late) == [[]]
    assert manager.pool.num_free_blocks == 1


def test_a_hit_that_leaves_too_few_blocks_for_the_rest_holds_nothing() -> None:
    manager = make_manager(num_blocks=4)
    first = make_request("a", range(8))
    compute(manager, first)
    manager.free(first)
    second = make_request("b", [*range(8), *range(50, 58)])
    hit = manager.get_computed_blocks(second)
    assert hit.num_tokens == 8
    # Three are free, two of them are the hit itself.
    assert manager.allocate_slots(second, 8, hit) is None
    assert manager.pool.num_free_blocks == 3


def test_a_hit_shares_the_blocks_of_the_request_that_computed_them() -> None:
    manager = make_manager()
    first, second = make_request("a", range(10)), make_request("b", [*range(8), 77, 78])
    compute(manager, first)
    assert compute(manager, second).num_tokens == 8
    assert manager.block_ids(second)[0][:2] == manager.block_ids(first)[0][:2]
    assert manager.block_ids(second)[0][2] != manager.block_ids(first)[0][2]


@pytest.mark.parametrize(("num_tokens", "expected"), [(8, 4), (9, 8), (4, 0), (1, 0)])
def test_at_least_the_last_token_is_always_computed(num_tokens: int, expected: int) -> None:
    manager = make_manager()
    compute(manager, make_request("a", range(20)))
    assert manager.get_computed_blocks(make_request("b", range(num_tokens))).num_tokens == expected


def test_nothing_is_found_before_it_is_computed() -> None:
    manager = make_manager()
    first = make_request("a", range(12))
    manager.allocate_slots(first, 12)
    assert manager.get_computed_blocks(make_request("b", range(12))).num_tokens == 0


def test_only_full_blocks_of_computed_tokens_are_found() -> None:
    manager = make_manager()
    compute(manager, make_request("a", range(12)), num_tokens=7)
    assert manager.get_computed_blocks(make_request("b", range(12))).num_tokens == 4


def test_output_tokens_are_cached_too() -> None:
    manager = make_manager()
    first = make_request("a", range(3))
    compute(manager, first)
    grow(manager, first, 6)
    assert manager.get_computed_blocks(make_request("b", range(20))).num_tokens == 8


def test_another_salt_finds_nothing() -> None:
    manager = make_manager()
    compute(manager, make_request("a", range(12), salt="x"))
    assert manager.get_computed_blocks(make_request("b", range(12), salt="y")).num_tokens == 0
    assert manager.get_computed_blocks(make_request("c", range(12))).num_tokens == 0
    assert manager.get_computed_blocks(make_request("d", range(12), salt="x")).num_tokens == 8


def test_of_a_freed_prefix_the_end_is_evicted_first() -> None:
    manager = make_manager(num_blocks=5)
    first = make_request("a", range(16))
    compute(manager, first)
    manager.free(first)
    manager.allocate_slots(make_request("b", [99]), 1)
    assert manager.get_computed_blocks(make_request("c", range(17))).num_tokens == 12


def test_without_a_hasher_nothing_is_ever_found() -> None:
    manager = KVCacheManager([full_spec()], registry(), 20, None, max_step_tokens=64)
    compute(manager, make_request("a", range(12)))
    assert manager.get_computed_blocks(make_request("b", range(12))).num_tokens == 0
    assert not manager.caches_prefixes


def test_all_blocks_come_back_when_the_requests_go() -> None:
    manager = make_manager()
    requests = [make_request(name, range(10)) for name in "abc"]
    for request in requests:
        compute(manager, request)
    for request in requests:
        manager.free(request)
    assert manager.pool.usage == 0.0
    assert manager.reset_prefix_cache()
    assert manager.get_computed_blocks(requests[0]).num_tokens == 0


def test_groups_of_different_block_sizes_agree_on_a_hit_that_suits_both() -> None:
    manager = make_manager(40, [full_spec(4), full_spec(12)], hash_block=4)
    compute(manager, make_request("a", range(30)))
    hit = compute(manager, make_request("b", [*range(23), 99]))
    assert hit.num_tokens == 12
    assert [len(blocks) for blocks in hit.blocks] == [3, 1]


def test_a_group_whose_blocks_are_no_multiple_of_the_hashed_ones_is_refused() -> None:
    with pytest.raises(ConfigError, match="blocks of 6 tokens, which is no multiple of the 4 tokens"):
        make_manager(specs=[full_spec(4), full_spec(6)])


def test_a_window_gives_back_the_blocks_that_no_token_reads_any_more() -> None:
    manager = make_manager(specs=[WindowSpec(block_size=4, window=6)])
    request = make_request("a", range(4))
    compute(manager, request)
    grow(manager, request, 21)  # when it takes a new block, old ones go
    table = manager.block_ids(request)[0]
    assert table[:4] == [0, 0, 0, 0]
    assert 0 not in table[4:]
    manager.free(request)
    assert manager.pool.usage == 0.0


def test_a_window_reuses_a_prefix_whose_beginning_is_gone() -> None:
    manager = make_manager(num_blocks=4, specs=[WindowSpec(block_size=4, window=6)])
    first = make_request("a", range(4))
    compute(manager, first)
    grow(manager, first, 20)
    manager.free(first)
    second = make_request("b", range(30))
    hit = manager.get_computed_blocks(second)
    assert hit.num_tokens == 24
    assert [block.block_id == 0 for block in hit.blocks[0]] == [True] * 4 + [False] * 2


def test_a_hit_is_cut_until_it_suits_the_window_too() -> None:
    """Full attention has 16 tokens; of the window's blocks only an early one is left."""
    window = WindowSpec(block_size=4, window=6)
    manager = make_manager(12, [full_spec(4), window])
    first = make_request("a", range(4))
    compute(manager, first)
    grow(manager, first, 12)
    manager.free(first)
    hit = manager.get_computed_blocks(make_request("b", range(17)))
    lengths = [len(blocks) * 4 for blocks in hit.blocks]
    assert lengths == [hit.num_tokens] * 2
    assert all(not block.is_null for block in hit.blocks[0])


def test_a_plugin_that_counts_on_a_block_that_isnt_cached_is_found_out() -> None:
    class Optimist(Window):
        def reusable_prefix_blocks(self, spec: KVCacheSpec, cached: Sequence[bool], max_tokens: int) -> int:
            return len(cached)

    from corefw.engine.kv_cache.specs import SpecRegistry

    spec = WindowSpec(block_size=4, window=100)
    manager = KVCacheManager([spec], SpecRegistry([Optimist()]), 10, BlockHasher(4), max_step_tokens=64)
    with pytest.raises(EngineError, match="Optimist reused block 0, which isn't cached"):
        manager.get_computed_blocks(make_request("a", range(9)))
