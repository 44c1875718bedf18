from __future__ import annotations

import dataclasses

import pytest
import torch

from corefw.errors import EngineError
from corefw.interfaces.attention import AttentionLayerSpec
from corefw.interfaces.kv_cache import FullAttentionSpec, SlidingWindowSpec
from corefw.models.layers.attention import Attention
from corefw.models.layers.forward_context import ForwardContext, get_forward_context, set_forward_context
from corefw.testing.paged_loop import cpu_build_context

SPEC = AttentionLayerSpec(name="a", num_heads=4, num_kv_heads=2, head_size=8, scale=1.0, sliding_window=7)
QKV = (torch.ones(3, 32), torch.ones(3, 16), torch.ones(3, 16))


def test_without_metadata_it_returns_zeros_and_needs_no_pages() -> None:
    with set_forward_context(ForwardContext(None, {})):
        assert torch.equal(Attention(SPEC, cpu_build_context())(*QKV), torch.zeros(3, 32))


def test_it_says_what_it_keeps_in_the_cache() -> None:
    assert Attention(SPEC, cpu_build_context("bfloat16")).kv_cache_spec(32) == FullAttentionSpec(
        block_size=32, num_kv_heads=2, head_size=8, dtype="bfloat16", sliding_window=7
    )


def test_with_hybrid_allocation_a_window_is_the_allocators_matter() -> None:
    build = cpu_build_context(hybrid_kv=True)
    assert Attention(SPEC, build).kv_cache_spec(16) == SlidingWindowSpec(
        block_size=16, num_kv_heads=2, head_size=8, dtype="float32", sliding_window=7
    )
    whole = dataclasses.replace(SPEC, sliding_window=None)
    assert type(Attention(whole, build).kv_cache_spec(16)) is FullAttentionSpec


def test_without_pages_it_names_the_layer() -> None:
    with (
        set_forward_context(ForwardContext({}, {"a": torch.zeros(3, dtype=torch.int64)})),
        pytest.raises(EngineError, match="layer a has no pages"),
    ):
        Attention(SPEC, cpu_build_context())(*QKV)


def test_outside_a_context_a_model_is_not_run() -> None:
    with pytest.raises(EngineError, match="outside set_forward_context"):
        Attention(SPEC, cpu_build_context())(*QKV)


def test_contexts_nest_and_end_with_their_block() -> None:
    outer, inner = ForwardContext(None, {}), ForwardContext({}, {})
    with set_forward_context(outer):
        with set_forward_context(inner):
            assert get_forward_context() is inner
        assert get_forward_context() is outer
    with pytest.raises(EngineError):
        get_forward_context()
