from __future__ import annotations

from fractions import Fraction

import pytest

from corefw.builtins.kv_cache_specs.full_attention import FullAttention
from corefw.interfaces.kv_cache import FullAttentionSpec


def spec(**fields: object) -> FullAttentionSpec:
    values: dict[str, object] = {"block_size": 4, "num_kv_heads": 1, "head_size": 2, "dtype": "float32"}
    return FullAttentionSpec(**(values | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_every_begun_block_of_tokens_needs_a_block(num_tokens: int, num_blocks: int) -> None:
    assert FullAttention().num_blocks_for(spec(), num_tokens) == num_blocks


@pytest.mark.parametrize(
    ("cached", "max_tokens", "expected"),
    [
        ([True, True, True], 12, 3),
        ([True, True, True], 11, 2),
        ([True, False, True], 12, 1),
        ([False, True], 8, 0),
        ([True], 100, 1),
        ([], 8, 0),
    ],
)
def test_a_prefix_reaches_to_the_first_block_that_isnt_cached_and_never_beyond_the_limit(
    cached: list[bool], max_tokens: int, expected: int
) -> None:
    assert FullAttention().reusable_prefix_blocks(spec(), cached, max_tokens) == expected


def test_no_block_becomes_unread() -> None:
    assert FullAttention().skippable_blocks(spec(sliding_window=8), 1000) == 0


def test_layers_with_and_without_a_window_of_their_own_share_a_table() -> None:
    plugin = FullAttention()
    assert plugin.group_key(spec()) == plugin.group_key(spec(sliding_window=8))


@pytest.mark.parametrize("other", [{"block_size": 8}, {"tokens_per_state": Fraction(1, 2)}])
def test_layers_with_other_blocks_do_not_share_a_table(other: dict[str, object]) -> None:
    plugin = FullAttention()
    assert plugin.group_key(spec()) != plugin.group_key(spec(**other))
