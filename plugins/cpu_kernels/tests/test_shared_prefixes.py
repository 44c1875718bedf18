"""Decodes that begin with the same blocks meet these together, and get the bits that each would get alone."""

from __future__ import annotations

import pytest
import torch

from corefw.interfaces.attention import AttentionBatch, AttentionLayerSpec
from corefw.interfaces.kv_cache import FullAttentionSpec
from corefw.testing.attention_suite import layer_to_check
from corefw_cpu_kernels.attention import CpuKernelsAttention

pytestmark = pytest.mark.usefixtures("level")

_BLOCK = 16
_WIDTH = 40


def _pages(layer: AttentionLayerSpec, dtype: torch.dtype) -> torch.Tensor:
    spec = FullAttentionSpec(
        block_size=_BLOCK,
        num_kv_heads=layer.num_kv_heads,
        head_size=layer.head_size,
        dtype=str(dtype).removeprefix("torch."),
    )
    shape = (200, *CpuKernelsAttention.page_view(spec).shape)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    if dtype != torch.int8:
        return noise.to(dtype)
    pages = (noise * 40).clamp(-127, 127).to(dtype)
    pages[..., -8:] = torch.tensor([0.02, 0.03]).view(torch.int8)  # the scales of key and value
    return pages


def _table(prefixes: list[tuple[int, int]]) -> torch.Tensor:
    """A request a row: so many blocks of a prefix by its number, then blocks of its own."""
    table = torch.arange(100, 100 + len(prefixes) * 8, dtype=torch.int32).view(len(prefixes), 8)
    rows = torch.zeros(len(prefixes), _WIDTH, dtype=torch.int32)
    for row, (prefix, num_blocks) in enumerate(prefixes):
        rows[row, :num_blocks] = torch.arange(1, 1 + num_blocks) + prefix * 40
        rows[row, num_blocks : num_blocks + 8] = table[row]
    return rows


def _decode(
    layer: AttentionLayerSpec, pages: torch.Tensor, query: torch.Tensor, table: torch.Tensor, lengths: list[int]
) -> torch.Tensor:
    kernels = CpuKernelsAttention.implementation(layer, dtype=query.dtype, batch_invariant=False)
    builder = CpuKernelsAttention.builder([layer], _BLOCK, len(lengths))
    batch = AttentionBatch(
        num_tokens=len(lengths),
        query_starts=torch.arange(len(lengths) + 1, dtype=torch.int32),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        block_table=table,
        slot_mapping=torch.empty(0, dtype=torch.int64),
        block_size=_BLOCK,
    )
    return kernels.forward(query, pages, builder.build(batch))


# Prefixes of 32, 24 and 9 blocks, which are 4, 3 and 1 chunks of keys, in no order; one request alone, one too short.
_PREFIXES = [(0, 32), (1, 24), (0, 32), (2, 9), (0, 9), (1, 24), (0, 32), (0, 3)]
_LENGTHS = [520, 400, 600, 200, 270, 385, 512, 60]


@pytest.mark.parametrize(
    ("layer", "dtype", "kv_dtype"),
    [
        (layer_to_check(9, 3, 64), torch.bfloat16, torch.bfloat16),
        (layer_to_check(9, 3, 64), torch.bfloat16, torch.int8),
        (layer_to_check(20, 1, 80), torch.bfloat16, torch.bfloat16),
        (layer_to_check(4, 2, 128), torch.float32, torch.float32),
        (layer_to_check(9, 3, 64, window=150), torch.bfloat16, torch.bfloat16),
    ],
)
def test_a_shared_prefix_changes_no_bit(layer: AttentionLayerSpec, dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    pages, table = _pages(layer, kv_dtype), _table(_PREFIXES)
    shape = (len(_LENGTHS), layer.num_heads, layer.head_size)
    query = torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    together = _decode(layer, pages, query, table, _LENGTHS)
    for row, length in enumerate(_LENGTHS):
        alone = _decode(layer, pages, query[row : row + 1], table[row : row + 1], [length])
        assert torch.equal(together[row], alone[0]), f"request {row}"


def test_more_requests_share_than_a_task_has_rows_for() -> None:
    layer, num_requests = layer_to_check(9, 3, 64), 50
    pages = _pages(layer, torch.bfloat16)
    table = torch.zeros(num_requests, _WIDTH, dtype=torch.int32)
    table[:, :17] = torch.arange(1, 18)
    table[:, 17] = torch.arange(100, 100 + num_requests)
    query = torch.randn((num_requests, 9, 64), generator=torch.Generator().manual_seed(3)).bfloat16()
    together = _decode(layer, pages, query, table, [280] * num_requests)
    for row in (0, 20, 21, 22, 49):
        alone = _decode(layer, pages, query[row : row + 1], table[row : row + 1], [280])
        assert torch.equal(together[row], alone[0]), f"request {row}"
