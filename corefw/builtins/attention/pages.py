"""Reading and writing the paged cache.

Shapes: T tokens, N requests, K KV heads, D head size, P pages, B block size, L keys, W row. A page is [K, B, W]; key
and value of a token lie beside each other in the last dimension, so W is 2·D. In int8 the scales of both follow, as the
bytes of two float32.
"""

from __future__ import annotations

import torch

from corefw.interfaces.kv_cache import INT8_SCALE_BYTES

__all__ = ["block_rows", "gather_blocks", "gather_pages", "write_pages"]


def write_pages(
    key_TKD: torch.Tensor, value_TKD: torch.Tensor, pages: torch.Tensor, slot_mapping_T: torch.Tensor
) -> None:
    """Store keys and values at their slots; negative slots are skipped."""
    num_kv_heads, block_size = pages.shape[1], pages.shape[2]
    used = slot_mapping_T >= 0
    if not bool(used.all()):
        key_TKD, value_TKD, slot_mapping_T = key_TKD[used], value_TKD[used], slot_mapping_T[used]
    page_T = slot_mapping_T // block_size
    heads_K = torch.arange(num_kv_heads, device=pages.device)
    rows_TK = (page_T[:, None] * num_kv_heads + heads_K) * block_size + (slot_mapping_T - page_T * block_size)[:, None]
    if pages.dtype == torch.int8:
        both = torch.cat(_quantise(torch.stack((key_TKD, value_TKD), dim=2)), dim=-1)
    else:
        both = torch.cat((key_TKD, value_TKD), dim=-1).to(pages.dtype)
    # view, not reshape: a copy of the cache would swallow the write without a word
    pages.view(-1, pages.shape[-1]).index_copy_(0, rows_TK.flatten(), both.flatten(0, 1))


def block_rows(
    block_table_NM: torch.Tensor, first_blocks: list[int], num_blocks: int, num_kv_heads: int
) -> torch.Tensor:
    """Rows of the cache seen as [P·K, B·2·D] that hold ``num_blocks`` blocks of each request, in head-major order.

    Args:
        block_table_NM: the requests' rows of the block table.
        first_blocks: a request: the table column to start at.
        num_blocks: columns to take; beyond the table the null block 0 stands in.
    """
    width = block_table_NM.shape[1]
    device = block_table_NM.device
    columns = torch.tensor(first_blocks, device=device)[:, None] + torch.arange(num_blocks, device=device)
    blocks = block_table_NM.to(torch.int64).gather(1, columns.clamp_max(width - 1))
    blocks = blocks.masked_fill(columns >= width, 0)
    heads_K = torch.arange(num_kv_heads, device=device)
    return (blocks[:, None, :] * num_kv_heads + heads_K[:, None]).flatten()


def gather_blocks(pages: torch.Tensor, rows: torch.Tensor, num_requests: int) -> torch.Tensor:
    """Copy whole blocks out of the cache: [N, K, L, 2·D], contiguous, L a multiple of B; int8 becomes float32."""
    num_kv_heads, width = pages.shape[1], pages.shape[3]
    taken = pages.view(-1, pages.shape[2] * width).index_select(0, rows)
    rows_NKLW = taken.view(num_requests, num_kv_heads, -1, width)
    return _dequantise(rows_NKLW) if pages.dtype == torch.int8 else rows_NKLW


def gather_pages(pages: torch.Tensor, rows: torch.Tensor, num_requests: int, num_keys: int) -> torch.Tensor:
    """The same with L cut to ``num_keys``, contiguous."""
    return gather_blocks(pages, rows, num_requests)[:, :, :num_keys].contiguous()


def _quantise(both_TK2D: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [T, K, 2·D] in int8, and the bytes of their scales: one a token, head and of key and value."""
    both = both_TK2D.float()
    scales_TK2 = both.abs().amax(-1) / 127
    whole = (both / scales_TK2.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(-1)).round().to(torch.int8)
    return whole.flatten(2), scales_TK2.view(torch.int8)


def _dequantise(rows_NKLW: torch.Tensor) -> torch.Tensor:
    num_scale_bytes = 2 * INT8_SCALE_BYTES
    scales = rows_NKLW[..., -num_scale_bytes:].contiguous().view(torch.float32)
    whole: torch.Tensor = rows_NKLW[..., :-num_scale_bytes].float().unflatten(-1, (2, -1))
    return whole.mul_(scales.unsqueeze(-1)).flatten(-2)
