"""Attention over pages agrees with its definition at every level, whatever the shapes, the lengths and the cut.

In float32, which the backend leaves to the core's own, the same kernels are held to closer limits.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corefw.errors import EngineError, PluginError
from corefw.interfaces.attention import (
    AttentionBatch,
    AttentionLayerSpec,
    AttentionMetadata,
    AttentionRequest,
)
from corefw.interfaces.kv_cache import FullAttentionSpec
from corefw.testing.attention_suite import (
    Sequence3,
    check_batch_invariance,
    check_forgotten_blocks,
    check_matches_reference,
    layer_to_check,
    random_schedule,
    random_sequences,
    reference_attention,
    run_schedule,
)
from corefw_cpu_kernels.attention import CpuKernelsAttention, StepMetadata
from corefw_cpu_kernels.calls import Tape

pytestmark = pytest.mark.usefixtures("level")

_examples = settings(
    deadline=None, derandomize=True, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@st.composite
def layers(draw: st.DrawFn) -> AttentionLayerSpec:
    kv_heads = draw(st.integers(1, 3))
    return layer_to_check(
        kv_heads * draw(st.integers(1, 8)),
        kv_heads,
        draw(st.sampled_from([16, 32, 48, 64, 80, 128, 256])),
        draw(st.sampled_from([None, None, 1, 7, 100, 129])),
        draw(st.sampled_from([None, None, 5.0])),
    )


DEMO = layer_to_check(9, 3, 64)
WINDOW = layer_to_check(4, 1, 64, window=150)
WIDE = layer_to_check(4, 1, 256, window=40, soft_cap=8.0)
lengths = st.lists(st.integers(1, 300), min_size=1, max_size=4)
dtypes = st.sampled_from([torch.bfloat16, torch.float32])


@_examples
@given(
    layer=layers(),
    lengths=lengths,
    dtype=dtypes,
    block_size=st.sampled_from([1, 8, 16, 24, 48]),
    seed=st.integers(0, 99),
)
def test_mixed_steps_agree_with_the_definition(
    layer: AttentionLayerSpec, lengths: list[int], dtype: torch.dtype, block_size: int, seed: int
) -> None:
    check_matches_reference(CpuKernelsAttention, layer, dtype, lengths=lengths, block_size=block_size, seed=seed)


@_examples
@given(layer=layers(), lengths=lengths, dtype=dtypes, seed=st.integers(0, 99))
def test_bits_do_not_depend_on_chunks_batch_or_block_size(
    layer: AttentionLayerSpec, lengths: list[int], dtype: torch.dtype, seed: int
) -> None:
    check_batch_invariance(CpuKernelsAttention, layer, dtype, lengths=lengths, seed=seed)


@pytest.mark.parametrize("layer", [WINDOW, WIDE])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_blocks_behind_the_window_are_not_read(layer: AttentionLayerSpec, dtype: torch.dtype) -> None:
    check_forgotten_blocks(CpuKernelsAttention, layer, dtype, lengths=(40, 330))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_decode_has_the_same_bits_in_every_batch(dtype: torch.dtype) -> None:
    """Without being asked for invariance: prompts may differ, decodes don't."""
    lengths = (700, 3, 130, 257, 90, 15)
    sequences = random_sequences(DEMO, lengths, dtype, 4)
    prompts = [(index, length - 1) for index, length in enumerate(lengths)]
    together = run_schedule(CpuKernelsAttention, DEMO, sequences, [prompts, [(i, 1) for i in range(len(lengths))]])
    for sequence, length, output in zip(sequences, lengths, together, strict=True):
        alone = run_schedule(CpuKernelsAttention, DEMO, [sequence], [[(0, length - 1)], [(0, 1)]], seed=9)[0]
        assert torch.equal(alone[-1], output[-1])


@pytest.mark.parametrize("layer", [DEMO, WINDOW, WIDE])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("block_size", [8, 16])
def test_an_int8_cache_is_read_as_what_was_rounded(
    layer: AttentionLayerSpec, dtype: torch.dtype, block_size: int
) -> None:
    lengths = (300, 20, 131)
    sequences = random_sequences(layer, lengths, dtype, 1)
    outputs = run_schedule(
        CpuKernelsAttention, layer, sequences, random_schedule(lengths, 5), block_size=block_size, kv_dtype=torch.int8
    )
    for sequence, output in zip(sequences, outputs, strict=True):
        rounded = Sequence3(sequence.query, _rounded(sequence.key), _rounded(sequence.value))
        error = (output.double() - reference_attention(rounded, layer)).abs().max()
        assert error <= (2e-5 if dtype == torch.float32 else 3e-2)


def _rounded(heads: torch.Tensor) -> torch.Tensor:
    scale = heads.float().abs().amax(-1, keepdim=True) / 127
    return (heads.float() / scale).round() * scale


class _Cache:
    """Two requests' pages, filled, in buffers whose contents change and whose addresses don't."""

    def __init__(self, layer: AttentionLayerSpec) -> None:
        self.kernels = CpuKernelsAttention.implementation(layer, dtype=torch.bfloat16, batch_invariant=False)
        self.builder = CpuKernelsAttention.builder([layer], 16, 4)
        noise = torch.Generator().manual_seed(3)
        spec = FullAttentionSpec(block_size=16, num_kv_heads=3, head_size=64, dtype="bfloat16")
        shape = (41, *CpuKernelsAttention.page_view(spec).shape)
        self.pages = torch.randn(shape, generator=noise).bfloat16()
        self.query = torch.randn(4, 9, 64, generator=noise).bfloat16()
        self.key = torch.randn(4, 3, 64, generator=noise).bfloat16()
        self.seq_lens = torch.tensor([300, 40, 0, 0], dtype=torch.int32)
        self.slots = torch.tensor([20 * 16 + 11, 22 * 16 + 7, -1, -1])
        self.table = torch.arange(1, 41, dtype=torch.int32).view(2, 20).repeat(2, 1)

    def metadata(self) -> StepMetadata:
        starts = torch.arange(5, dtype=torch.int32)
        return self.builder.build(
            AttentionBatch(
                num_tokens=4,
                query_starts=starts,
                seq_lens=self.seq_lens,
                block_table=self.table,
                slot_mapping=self.slots,
                block_size=16,
            )
        )

    def step(self) -> torch.Tensor:
        self.kernels.write_cache(self.key, self.key, self.pages, self.slots)
        return self.kernels.forward(self.query, self.pages, self.metadata())


def test_padding_requests_get_zeros_and_write_nothing() -> None:
    cache = _Cache(DEMO)
    before = cache.pages.clone()
    out = cache.step()
    assert torch.equal(out[2:], torch.zeros(2, 9, 64).bfloat16())
    assert bool(out[:2].any(-1).all())
    assert int((cache.pages != before).any(-1).sum()) == 2 * 3


def test_a_replayed_tape_reads_the_lengths_and_slots_of_the_new_step() -> None:
    cache, tape = _Cache(DEMO), Tape()
    with tape.record():
        out = cache.step()
    first = out.clone()
    cache.seq_lens.copy_(torch.tensor([301, 41, 20, 0]))
    cache.slots.copy_(torch.tensor([20 * 16 + 12, 22 * 16 + 8, -1, -1]))
    cache.query.mul_(-1)
    cache.metadata()
    tape.replay()
    fresh = _Cache(DEMO)
    fresh.step()
    for name in ("seq_lens", "slots", "query"):
        getattr(fresh, name).copy_(getattr(cache, name))
    assert torch.equal(out, fresh.step())
    assert not torch.equal(out, first)
    assert bool(out[2].any())


def test_tokens_that_are_parts_of_longer_rows_are_found() -> None:
    cache = _Cache(DEMO)
    wide = torch.cat((cache.query.flatten(1), cache.key.flatten(1), cache.key.flatten(1)), 1)
    query, key, value = (part.unflatten(1, (-1, 64)) for part in wide.split([576, 192, 192], 1))
    expected = cache.step()
    cache.kernels.write_cache(key, value, cache.pages, cache.slots)
    assert torch.equal(cache.kernels.forward(query, cache.pages, cache.metadata()), expected)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"kv_dtype": "int8", "sliding_window": True, "soft_cap": True, "batch_invariant": True}, None),
        ({"head_size": 72}, "head size 72 is no multiple of 16 up to 512"),
        ({"head_size": 528}, "head size 528 is no multiple of 16 up to 512"),
        ({"dtype": "float16", "kv_dtype": "float16"}, "dtype float16 not among"),
        ({"kv_dtype": "float32"}, "KV dtype float32 not among"),
        ({"dtype": "float32", "kv_dtype": "float32"}, "dtype float32 not among"),
        ({"device_type": "cuda"}, "its kernels run on cpu, not on cuda"),
        ({"kind": "mla"}, "attention kind mla"),
    ],
)
def test_what_it_cannot_do_is_declined_with_the_reason(change: dict[str, Any], reason: str | None) -> None:
    asked: dict[str, Any] = {"device_type": "cpu", "dtype": "bfloat16", "kv_dtype": "bfloat16", "head_size": 64}
    answer = CpuKernelsAttention.capabilities.supports(AttentionRequest(**(asked | change)))
    assert answer is None if reason is None else reason in str(answer)


def test_pages_of_states_and_foreign_metadata_are_refused() -> None:
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=16, dtype="bfloat16", tokens_per_state=4)
    with pytest.raises(PluginError, match="every token"):
        CpuKernelsAttention.page_view(spec)
    kernels = CpuKernelsAttention.implementation(DEMO, dtype=torch.bfloat16, batch_invariant=False)
    with pytest.raises(EngineError, match="AttentionMetadata"):
        kernels.forward(torch.zeros(1, 9, 64), torch.zeros(1), AttentionMetadata())
