from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.builtins.kv_cache_specs.sliding_window import SlidingWindow
from corefw.errors import PluginError
from corefw.interfaces.kv_cache import FullAttentionSpec, SlidingWindowSpec
from corefw.plugin_system.manager import PluginManager

quick = settings(deadline=None, derandomize=True, max_examples=200)


def spec(window: int = 6, block_size: int = 4) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size=block_size, num_kv_heads=1, head_size=2, dtype="float32", sliding_window=window)


def first_read(position: int, window: int) -> int:
    return max(0, position - window + 1)


@quick
@given(st.integers(0, 60), st.integers(1, 20), st.integers(1, 8))
def test_exactly_the_blocks_that_no_later_token_reads_are_given_back(
    num_computed: int, window: int, block_size: int
) -> None:
    skippable = SlidingWindow().skippable_blocks(spec(window, block_size), num_computed)
    assert skippable * block_size <= first_read(num_computed, window) < (skippable + 1) * block_size


@quick
@given(st.lists(st.booleans(), max_size=12), st.integers(0, 60), st.integers(1, 20))
def test_a_prefix_is_the_longest_whose_last_window_is_cached(cached: list[bool], max_tokens: int, window: int) -> None:
    plugin, layout = SlidingWindow(), spec(window)
    ends = [
        end
        for end in range(min(len(cached), max_tokens // 4) + 1)
        if all(cached[index] for index in range(plugin.skippable_blocks(layout, end * 4), end))
    ]
    assert plugin.reusable_prefix_blocks(layout, cached, max_tokens) == max(ends)


@quick
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 20), st.integers(1, 8))
def test_no_more_blocks_are_held_than_promised(chunks: list[int], window: int, block_size: int) -> None:
    plugin, layout = SlidingWindow(), spec(window, block_size)
    promised = plugin.max_blocks_held(layout, sum(chunks), max(chunks))
    num_computed = 0
    for chunk in chunks:
        held = plugin.num_blocks_for(layout, num_computed + chunk) - plugin.skippable_blocks(layout, num_computed)
        assert held <= promised
        num_computed += chunk


def test_a_long_request_is_promised_a_window_and_a_step() -> None:
    assert SlidingWindow().max_blocks_held(spec(window=9), 10_000, 16) == 7
    assert SlidingWindow().max_blocks_held(spec(window=9), 8, 16) == 2


def test_layers_with_other_windows_do_not_share_a_table() -> None:
    plugin = SlidingWindow()
    assert plugin.group_key(spec(6)) == plugin.group_key(spec(6))
    assert plugin.group_key(spec(6)) != plugin.group_key(spec(7))
    assert plugin.group_key(spec(6)) != plugin.group_key(spec(6, block_size=8))


def test_another_spec_is_refused() -> None:
    full = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=2, dtype="float32")
    with pytest.raises(PluginError, match="serves SlidingWindowSpec, not FullAttentionSpec"):
        SlidingWindow().skippable_blocks(full, 9)


def test_it_comes_in_through_its_group() -> None:
    assert PluginManager.discover().get("kv_cache_specs", "sliding_window") is SlidingWindow
