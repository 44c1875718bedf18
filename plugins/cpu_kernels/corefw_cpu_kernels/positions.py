"""Rows by id, heads by position; see ``csrc/kernels_positions.cpp``."""

from __future__ import annotations

import torch

from corefw_cpu_kernels.calls import Kernel
from corefw_cpu_kernels.products import is_packed
from corefw_cpu_kernels.rows import new_rows, rows_of

__all__ = ["embedding", "rotary_embedding"]

_embedding = Kernel("embedding")
_packed_embedding = Kernel("packed_embedding")
_rotary_embedding = Kernel("rotary_embedding")


def embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """ids [T], weight [V, E], or packed with E a multiple of 32 → [T, E]. An id that isn't there gives zeros."""
    wanted = ids.to(torch.int64).contiguous()
    if is_packed(weight):
        width = weight.shape[1] * 32
        out = new_rows(*ids.shape, width)
        _packed_embedding(out, wanted, weight, wanted.numel(), width, weight.shape[0] * 16)
        return out
    rows = rows_of(weight)
    num_ids, width = rows.shape
    out = new_rows(*ids.shape, width)
    _embedding(out, wanted, rows, wanted.numel(), width, num_ids, rows.stride(0))
    return out


def rotary_embedding(
    query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, head_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn query [T, H·D] and key [T, K·D] by their positions [T], in float32; see the op."""
    queries, keys = rows_of(query), rows_of(key)
    num_tokens, query_width = queries.shape
    key_width = keys.shape[1]
    num_positions, rotary_size = cos_sin.shape
    query_out, key_out = new_rows(num_tokens, query_width), new_rows(num_tokens, key_width)
    _rotary_embedding(
        query_out,
        key_out,
        queries,
        keys,
        positions.to(torch.int64).contiguous(),
        cos_sin.contiguous(),
        num_tokens,
        query_width // head_size,
        key_width // head_size,
        head_size,
        rotary_size,
        num_positions,
        queries.stride(0),
        keys.stride(0),
    )
    return query_out, key_out
