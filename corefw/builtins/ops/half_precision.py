"""Ops for half precision with fewer calls than the reference. The order of roundings differs, the accuracy doesn't.

Shapes: T tokens, E model width, H heads of queries and keys together, D head size, R rotated elements of a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

__all__ = ["add_rms_norm", "rms_norm", "rotary_embedding"]


def rms_norm(input: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """input [T, E] → input / rms(input) · weight; in float32, rounded once."""
    return F.rms_norm(input, weight.shape, weight, eps)


def add_rms_norm(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of input + residual, and that sum."""
    total = input + residual
    return F.rms_norm(total, weight.shape, weight, eps), total


def rotary_embedding(
    query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, head_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn queries and keys together, in float32."""
    cos_T1R, sin_T1R = cos_sin.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
    half = cos_T1R.shape[-1]
    heads_THD = torch.cat((query, key), dim=-1).unflatten(-1, (-1, head_size)).float()
    first, second = heads_THD[..., :half], heads_THD[..., half : 2 * half]
    turned_THD = torch.empty_like(heads_THD)
    torch.mul(first, cos_T1R, out=turned_THD[..., :half]).addcmul_(second, sin_T1R, value=-1)
    torch.mul(second, cos_T1R, out=turned_THD[..., half : 2 * half]).addcmul_(first, sin_T1R)
    if 2 * half < head_size:
        turned_THD[..., 2 * half :] = heads_THD[..., 2 * half :]
    num_query_heads = query.shape[-1] // head_size
    return (
        turned_THD[:, :num_query_heads].to(query.dtype, copy=True).flatten(1),
        turned_THD[:, num_query_heads:].to(key.dtype, copy=True).flatten(1),
    )
