from __future__ import annotations

from typing import ClassVar

import pytest
import torch

from corefw.errors import EngineError
from corefw.interfaces.attention import PageView
from corefw.interfaces.kv_cache import FullAttentionSpec, KVCacheSpec
from corefw.runtime.kv_pages import KVPages
from tests.runtime.context_model import ContextBackend

CPU = torch.device("cpu")


def _spec(dtype: str = "bfloat16", num_kv_heads: int = 2) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=4, num_kv_heads=num_kv_heads, head_size=8, dtype=dtype)


class HeadsFirst(ContextBackend):
    """[heads, block, 2 * size] seen through the strides of [block, heads, 2 * size]."""

    name: ClassVar[str] = "heads-first"

    @classmethod
    def page_view(cls, spec: KVCacheSpec) -> PageView:
        return PageView(shape=(2, 4, 16), strides=(16, 32, 1))


class Flat(ContextBackend):
    """All that a page holds."""

    name: ClassVar[str] = "flat"

    @classmethod
    def page_view(cls, spec: KVCacheSpec) -> PageView:
        return PageView(shape=(spec.page_bytes // 2,), strides=(1,))


class Greedy(ContextBackend):
    name: ClassVar[str] = "greedy"

    @classmethod
    def page_view(cls, spec: KVCacheSpec) -> PageView:
        return PageView(shape=(2, 4, 16), strides=(64, 16, 1), extra_bytes=1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_layer_has_its_own_pages_seen_through_the_backends_strides(dtype: str) -> None:
    pages = KVPages([{"a": _spec(dtype), "b": _spec(dtype)}], 6, CPU)
    pages.clear([list(range(6))])
    views = pages.views(HeadsFirst)
    assert views["a"].shape == (6, 2, 4, 16)
    assert views["a"].dtype is getattr(torch, dtype)
    views["b"][3, 1, 2] = 1.0
    assert not views["a"].any()
    raw = pages.buffers[0][1, 3].view(getattr(torch, dtype)).view(4, 2, 16)
    assert raw[2, 1].tolist() == [1.0] * 16
    assert int(raw.count_nonzero()) == 16


def test_clearing_zeroes_the_named_blocks_in_every_layer_of_the_group_and_nothing_else() -> None:
    pages = KVPages([{"a": _spec(), "b": _spec()}, {"c": _spec(num_kv_heads=1)}], 5, CPU)
    for buffer in pages.buffers:
        buffer.fill_(255)
    pages.clear([[1, 3], []])
    assert [bool(pages.buffers[0][:, block].any()) for block in range(5)] == [True, False, True, False, True]
    assert bool(pages.buffers[1].all())


def test_a_cache_that_isnt_cleared_keeps_what_it_has_but_for_the_null_block() -> None:
    pages = KVPages([{"a": _spec()}], 3, CPU, clears=False)
    assert not pages.buffers[0][:, 0].any()
    pages.buffers[0].fill_(255)
    pages.clear([[1, 2]])
    assert bool(pages.buffers[0].all())


def test_the_null_block_is_zero_from_the_start() -> None:
    pages = KVPages([{"a": _spec()}, {"b": _spec()}], 3, CPU)
    assert not any(buffer[:, 0].any() for buffer in pages.buffers)


def test_layers_of_one_group_need_pages_of_one_size() -> None:
    with pytest.raises(EngineError, match="pages of one size"):
        KVPages([{"a": _spec(), "b": _spec(num_kv_heads=1)}], 3, CPU)


def test_a_view_larger_than_the_page_is_refused() -> None:
    with pytest.raises(EngineError, match="greedy sees more in a page than its 256 bytes"):
        KVPages([{"a": _spec()}], 3, CPU).views(Greedy)


def test_groups_with_pages_of_one_size_use_the_same_memory_layer_by_layer() -> None:
    pages = KVPages([{"a": _spec(), "b": _spec()}, {"c": _spec()}, {"d": _spec(num_kv_heads=1)}], 4, CPU)
    pages.clear([[0, 1, 2, 3], [], [0, 1, 2, 3]])
    assert [buffer.shape for buffer in pages.buffers] == [(2, 4, 256), (1, 4, 128)]
    views = pages.views(Flat)
    views["c"][2] = 1.0
    assert bool((views["a"][2] == 1.0).all())
    assert not views["b"].any()
    assert not views["d"].any()


def test_a_block_of_any_group_is_cleared() -> None:
    pages = KVPages([{"a": _spec()}, {"b": _spec()}], 4, CPU)
    for buffer in pages.buffers:
        buffer.fill_(255)
    pages.clear([[1], [3]])
    assert [bool(pages.buffers[0][:, block].any()) for block in range(4)] == [True, False, True, False]
