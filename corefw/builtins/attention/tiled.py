"""Attention whose bits depend on a query's own context alone: not on the batch, the chunking, the block size.

Scores, exponentials and products with the values are computed in float32, in matrix products of one fixed shape (M
rows, C keys, D elements), over key tiles that begin at fixed positions, and added up in the order of those tiles. Tiles
that a query can't see, and the padding of tiles, add exact zeros; the maximum is exact in any order. A BLAS batches
such small products without changing any of them (measured for batches of 1 to 1000).

Shapes as in ``tiles``; T tokens, H query heads, K KV heads, D head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from corefw.builtins.attention.metadata import TorchMetadata
from corefw.builtins.attention.pages import gather_pages
from corefw.builtins.attention.tiles import KEYS_PER_TILE, TileGroup, plan_tiles, rows_per_tile, tokens_per_tile
from corefw.interfaces.attention import AttentionLayerSpec

__all__ = ["tiled_attention"]


def tiled_attention(
    query_THD: torch.Tensor, pages: torch.Tensor, metadata: TorchMetadata, layer: AttentionLayerSpec
) -> torch.Tensor:
    """[T, H, D]; tokens beyond the batch get zeros."""
    key = ("tiles", layer.num_heads, layer.num_kv_heads, layer.sliding_window)
    groups = metadata.plan(key, lambda: plan_tiles(metadata, layer))
    out_THD = torch.zeros_like(query_THD, memory_format=torch.contiguous_format)
    for group in groups:
        _attend(query_THD, pages, group, layer, out_THD)
    return out_THD


def _attend(
    query_THD: torch.Tensor,
    pages: torch.Tensor,
    group: TileGroup,
    layer: AttentionLayerSpec,
    out_THD: torch.Tensor,
) -> None:
    queries = _query_tiles(query_THD, group, layer)
    kv = gather_pages(pages, group.page_rows, group.num_requests, group.num_key_tiles * KEYS_PER_TILE).float()
    kv.view(-1, kv.shape[-1]).index_fill_(0, group.blank, 0.0)  # what lies there may be NaN
    kv = kv.view(group.num_requests, layer.num_kv_heads, group.num_key_tiles, KEYS_PER_TILE, -1)
    keys, values = kv[..., : layer.head_size], kv[..., layer.head_size :]
    scores = _products(queries, keys.transpose(-1, -2))
    if layer.soft_cap is not None:
        scores = scores.div_(layer.soft_cap).tanh_().mul_(layer.soft_cap)
    scores[:, :, group.first_masked_tile :].masked_fill_(group.hidden, -torch.inf)
    scores.sub_(scores.amax((2, 5), keepdim=True)).exp_()
    sums = _in_order(scores.sum(-1))
    mixed = _in_order(_products(scores, values))
    _scatter(mixed.div_(sums.unsqueeze(-1)), group, layer, out_THD)


def _query_tiles(query_THD: torch.Tensor, group: TileGroup, layer: AttentionLayerSpec) -> torch.Tensor:
    """[N, K, 1, Q, M, D], scaled."""
    per_tile = tokens_per_tile(layer)
    taken = query_THD.index_select(0, group.tokens).float() * layer.scale
    tiles = taken.view(
        group.num_requests, group.num_query_tiles, per_tile, layer.num_kv_heads, -1, layer.head_size
    ).permute(0, 3, 1, 2, 4, 5)
    tiles = tiles.flatten(3, 4)
    return F.pad(tiles, (0, 0, 0, rows_per_tile(layer) - tiles.shape[3])).unsqueeze(2)


def _products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """[N, K, 1 or J, Q, M, x] · [N, K, J, x, y] → [N, K, J, Q, M, y], each product on its own."""
    num_requests, num_kv_heads, num_key_tiles, inner, width = right.shape
    num_query_tiles, rows = left.shape[3], left.shape[4]
    if num_query_tiles == 1:
        many = left.expand(-1, -1, num_key_tiles, -1, -1, -1).reshape(-1, rows, inner)
        out = torch.bmm(many, right.flatten(0, 2))
        return out.view(num_requests, num_kv_heads, num_key_tiles, 1, rows, width)
    out = left.new_empty((1, num_kv_heads, num_key_tiles, num_query_tiles, rows, width))
    for head in range(num_kv_heads):
        for tile in range(num_key_tiles):
            one = left[0, head, tile if left.shape[2] > 1 else 0]
            shared = right[0, head, tile].expand(num_query_tiles, -1, -1)
            torch.bmm(one, shared, out=out[0, head, tile])
    return out


def _in_order(parts: torch.Tensor) -> torch.Tensor:
    """Sum over key tiles, first to last."""
    total = parts[:, :, 0]
    for tile in range(1, parts.shape[2]):
        total = total.add_(parts[:, :, tile])
    return total


def _scatter(mixed: torch.Tensor, group: TileGroup, layer: AttentionLayerSpec, out_THD: torch.Tensor) -> None:
    per_tile = tokens_per_tile(layer)
    heads = layer.num_heads // layer.num_kv_heads
    rows = mixed[:, :, :, : per_tile * heads].unflatten(3, (per_tile, heads))
    rows = rows.permute(0, 2, 3, 1, 4, 5).reshape(-1, layer.num_heads, layer.head_size)
    tokens = group.tokens
    if group.kept is not None:
        rows, tokens = rows.index_select(0, group.kept), tokens.index_select(0, group.kept)
    out_THD.index_copy_(0, tokens, rows.to(out_THD.dtype))
