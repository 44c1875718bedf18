from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.builtins.attention.torch_attention import TorchAttention
from corefw.errors import EngineError, PluginError
from corefw.interfaces.attention import AttentionLayerSpec, AttentionMetadata
from corefw.interfaces.kv_cache import FullAttentionSpec
from corefw.testing.attention_suite import (
    check_backend,
    check_batch_invariance,
    check_forgotten_blocks,
    check_matches_reference,
    layers_to_check,
    random_sequences,
    run_schedule,
)

DEMO = AttentionLayerSpec(name="demo", num_heads=9, num_kv_heads=3, head_size=64, scale=0.125)
WINDOW = AttentionLayerSpec(name="window", num_heads=4, num_kv_heads=2, head_size=16, scale=0.25, sliding_window=33)
CAPPED = AttentionLayerSpec(
    name="capped", num_heads=4, num_kv_heads=4, head_size=16, scale=0.25, sliding_window=40, soft_cap=3.0
)


def test_it_passes_the_conformance_suite() -> None:
    assert len(list(layers_to_check(TorchAttention, "float32"))) == 6
    check_backend(TorchAttention)


@pytest.mark.parametrize("layer", [DEMO, WINDOW, CAPPED])
@settings(deadline=None, derandomize=True, max_examples=8)
@given(lengths=st.lists(st.integers(1, 200), min_size=1, max_size=5), seed=st.integers(0, 10_000))
def test_bits_do_not_depend_on_chunks_batch_or_block_size(
    layer: AttentionLayerSpec, lengths: list[int], seed: int
) -> None:
    check_batch_invariance(TorchAttention, layer, torch.float32, lengths=lengths, seed=seed)


@pytest.mark.parametrize("threads", [1, 2])
def test_bits_of_a_long_prompt_do_not_depend_on_chunks(threads: int) -> None:
    torch.set_num_threads(threads)
    check_batch_invariance(TorchAttention, DEMO, torch.float32, lengths=(300, 3), seed=5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block_size", [1, 8, 24, 128])
def test_any_block_size_works(dtype: torch.dtype, block_size: int) -> None:
    for layer in (DEMO, WINDOW):
        check_matches_reference(TorchAttention, layer, dtype, block_size=block_size, seed=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_decodes_of_very_different_lengths_agree_with_the_definition(dtype: torch.dtype) -> None:
    lengths = (2, 3, 9, 30, 65, 129, 257, 500, 501, 40, 41, 42)
    sequences = random_sequences(DEMO, lengths, dtype, 1)
    prompts = [(index, length - 1) for index, length in enumerate(lengths)]
    once = run_schedule(TorchAttention, DEMO, sequences, [prompts, [(i, 1) for i in range(len(lengths))]])
    for sequence, output, length in zip(sequences, once, lengths, strict=True):
        alone = run_schedule(TorchAttention, DEMO, [sequence], [[(0, length)]])[0]
        tolerance = 1e-6 if dtype == torch.float32 else 2e-2
        assert torch.allclose(alone.float(), output.float(), atol=tolerance, rtol=0)


@pytest.mark.parametrize("layer", [DEMO, WINDOW])
def test_prompts_of_one_length_agree_with_each_computed_alone(layer: AttentionLayerSpec) -> None:
    lengths = (40, 9, 40, 40, 9, 1, 30)
    sequences = random_sequences(layer, lengths, torch.bfloat16, 2)
    step = list(enumerate(lengths))
    together = run_schedule(TorchAttention, layer, sequences, [step])
    for sequence, output, length in zip(sequences, together, lengths, strict=True):
        alone = run_schedule(TorchAttention, layer, [sequence], [[(0, length)]])[0]
        assert torch.allclose(alone.float(), output.float(), atol=2e-2, rtol=0)


@pytest.mark.parametrize("invariant", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [1, 7, 33, 64, 65])
def test_what_lies_before_the_window_may_be_gone(window: int, dtype: torch.dtype, invariant: bool) -> None:
    for layer in (WINDOW, CAPPED):
        narrowed = dataclasses.replace(layer, sliding_window=window)
        check_forgotten_blocks(TorchAttention, narrowed, dtype, batch_invariant=invariant, seed=window)


def test_a_layer_of_another_kind_of_state_is_refused() -> None:
    spec = FullAttentionSpec(block_size=16, tokens_per_state=2, num_kv_heads=1, head_size=8, dtype="float32")
    with pytest.raises(PluginError, match="keys and values of every token"):
        TorchAttention.page_view(spec)


def test_metadata_of_another_backend_is_refused() -> None:
    kernels = TorchAttention.implementation(DEMO, dtype=torch.float32, batch_invariant=True)
    with pytest.raises(EngineError, match="AttentionMetadata"):
        kernels.forward(torch.zeros(1, 9, 64), torch.zeros(1, 3, 16, 128), AttentionMetadata())
