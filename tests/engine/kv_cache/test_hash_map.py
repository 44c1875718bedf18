from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.engine.kv_cache.block import KVCacheBlock
from corefw.engine.kv_cache.hash_map import BlockHashMap


def test_an_unknown_key_finds_nothing() -> None:
    assert BlockHashMap().get(b"x") is None


def test_any_of_several_blocks_with_a_key_is_found_until_the_last_is_gone() -> None:
    blocks = [KVCacheBlock(block_id) for block_id in range(3)]
    table = BlockHashMap()
    for block in blocks:
        table.add(b"x", block)
    for left in (2, 1, 0):
        found = table.get(b"x")
        assert found is not None
        table.discard(b"x", found)
        assert (table.get(b"x") is None) == (left == 0)
    assert len(table) == 0


def test_discarding_a_block_that_isnt_there_changes_nothing() -> None:
    table = BlockHashMap()
    block = KVCacheBlock(1)
    table.add(b"x", block)
    table.discard(b"x", KVCacheBlock(2))
    table.discard(b"y", block)
    assert table.get(b"x") is block


operations = st.lists(st.tuples(st.booleans(), st.sampled_from([b"a", b"b"]), st.integers(0, 3)), max_size=40)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(operations)
def test_it_behaves_like_a_table_of_sets(steps: list[tuple[bool, bytes, int]]) -> None:
    blocks = [KVCacheBlock(block_id) for block_id in range(4)]
    table, model = BlockHashMap(), {b"a": set[int](), b"b": set[int]()}
    for adds, key, block_id in steps:
        if adds:
            table.add(key, blocks[block_id])
            model[key].add(block_id)
        else:
            table.discard(key, blocks[block_id])
            model[key].discard(block_id)
        for each, expected in model.items():
            found = table.get(each)
            assert found.block_id in expected if found else not expected
    assert len(table) == sum(bool(expected) for expected in model.values())
