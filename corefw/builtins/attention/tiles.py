"""The plan of the tiled path: which queries meet which keys, in tiles of fixed size at fixed places.

Shapes: N requests of a group, Q query tiles, A tokens a query tile, G query heads a KV head, M rows a tile (M ≥ A·G),
J key tiles, C keys a tile, L = J·C keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from corefw.builtins.attention.metadata import Span, TorchMetadata
from corefw.builtins.attention.pages import block_rows
from corefw.interfaces.attention import AttentionLayerSpec

__all__ = ["KEYS_PER_TILE", "TileGroup", "plan_tiles", "rows_per_tile", "tokens_per_tile"]

KEYS_PER_TILE = 64
_ROWS = 16
_MAX_SCORES = 2**22  # 16 MiB of float32 a group
_MAX_QUERY_TILES = 32  # so that early queries of a long prompt skip later keys
_MAX_STRETCH = 1.5  # requests share a group while the longest has at most so many times the key tiles of the shortest


@dataclass(frozen=True, slots=True)
class TileGroup:
    """Queries that are computed together: one tile each of many requests, or many tiles of one request.

    Attributes:
        num_requests: N.
        num_query_tiles: Q; 1 if N > 1.
        num_key_tiles: J.
        tokens: [N·Q·A] token of each query; 0 for padding.
        kept: positions in ``tokens`` that aren't padding; None when none is.
        page_rows: see ``block_rows``.
        blank: rows of the gathered [N·K·L, 2·D] that hold no token of the request, or one that no query of the item
            sees any more: its block may be gone, and the null block stands in.
        first_masked_tile: key tiles before it are seen by every query.
        hidden: [N, 1, J', Q, M, C], keys that a query must not see, for tiles from ``first_masked_tile``.
    """

    num_requests: int
    num_query_tiles: int
    num_key_tiles: int
    tokens: torch.Tensor
    kept: torch.Tensor | None
    page_rows: torch.Tensor
    blank: torch.Tensor
    first_masked_tile: int
    hidden: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Item:
    """Consecutive tokens of one request. ``position`` is that of the first; keys start at ``first_tile``."""

    span: Span
    token: int
    position: int
    num_tokens: int
    first_tile: int
    num_key_tiles: int


def tokens_per_tile(layer: AttentionLayerSpec) -> int:
    """A: whole tokens, so that a token's heads share a tile."""
    return max(1, _ROWS // (layer.num_heads // layer.num_kv_heads))


def rows_per_tile(layer: AttentionLayerSpec) -> int:
    """M: depends on nothing but the layer."""
    rows = tokens_per_tile(layer) * (layer.num_heads // layer.num_kv_heads)
    return -(-rows // _ROWS) * _ROWS


def plan_tiles(metadata: TorchMetadata, layer: AttentionLayerSpec) -> list[TileGroup]:
    """Cut a step into groups. How it is cut changes no result, only the time taken."""
    per_tile = tokens_per_tile(layer)
    short: list[_Item] = []
    groups: list[list[_Item]] = []
    for span in metadata.spans:
        if span.num_tokens <= per_tile:
            short.append(_item(metadata, layer, span, 0, span.num_tokens))
        else:
            groups += [[item] for item in _long(metadata, layer, span)]
    groups += _similar(short, layer.num_kv_heads * rows_per_tile(layer) * KEYS_PER_TILE)
    return [_group(metadata, layer, items) for items in groups]


def _long(metadata: TorchMetadata, layer: AttentionLayerSpec, span: Span) -> list[_Item]:
    per_tile = tokens_per_tile(layer)
    longest = -(-span.length // KEYS_PER_TILE) * KEYS_PER_TILE
    fitting = _MAX_SCORES // (layer.num_kv_heads * rows_per_tile(layer) * longest)
    step = per_tile * max(1, min(_MAX_QUERY_TILES, fitting))
    return [
        _item(metadata, layer, span, start, min(step, span.num_tokens - start))
        for start in range(0, span.num_tokens, step)
    ]


def _item(metadata: TorchMetadata, layer: AttentionLayerSpec, span: Span, start: int, num_tokens: int) -> _Item:
    position = span.length - span.num_tokens + start
    first_tile = 0
    if layer.sliding_window is not None:
        first_tile = max(0, position - layer.sliding_window + 1) // KEYS_PER_TILE
        first_tile -= first_tile % (math.lcm(KEYS_PER_TILE, metadata.block_size) // KEYS_PER_TILE)
    last_tile = (position + num_tokens - 1) // KEYS_PER_TILE
    return _Item(span, span.start + start, position, num_tokens, first_tile, last_tile - first_tile + 1)


def _similar(items: list[_Item], scores_per_key_tile: int) -> list[list[_Item]]:
    groups: list[list[_Item]] = []
    for item in sorted(items, key=lambda item: -item.num_key_tiles):
        longest = groups[-1][0].num_key_tiles if groups else 0
        too_many = groups and (len(groups[-1]) + 1) * longest * scores_per_key_tile > _MAX_SCORES
        if not groups or too_many or longest > item.num_key_tiles * _MAX_STRETCH:
            groups.append([item])
        else:
            groups[-1].append(item)
    return groups


def _group(metadata: TorchMetadata, layer: AttentionLayerSpec, items: list[_Item]) -> TileGroup:
    device = metadata.block_table.device
    per_tile = tokens_per_tile(layer)
    num_query_tiles = -(-items[0].num_tokens // per_tile)
    num_key_tiles = max(item.num_key_tiles for item in items)
    offset = torch.arange(num_query_tiles * per_tile)
    first_key = torch.tensor([item.first_tile for item in items]) * KEYS_PER_TILE
    real = offset < torch.tensor([item.num_tokens for item in items])[:, None]
    tokens = (torch.tensor([item.token for item in items])[:, None] + offset).where(real, 0)
    position = (torch.tensor([item.position for item in items])[:, None] + offset).where(real, first_key[:, None])
    key = first_key[:, None] + torch.arange(num_key_tiles * KEYS_PER_TILE)
    last = torch.tensor([item.position + item.num_tokens - 1 for item in items])
    unseen = key > last[:, None]
    if layer.sliding_window is not None:
        unseen |= key <= torch.tensor([item.position for item in items])[:, None] - layer.sliding_window
    first_masked_tile = 0
    if len(items) == 1 and layer.sliding_window is None:
        first_masked_tile = items[0].position // KEYS_PER_TILE
    return TileGroup(
        num_requests=len(items),
        num_query_tiles=num_query_tiles,
        num_key_tiles=num_key_tiles,
        tokens=tokens.flatten().to(device),
        kept=None if bool(real.all()) else real.flatten().nonzero().flatten().to(device),
        page_rows=_page_rows(metadata, layer, items, num_key_tiles),
        blank=_blank(unseen, layer.num_kv_heads).to(device),
        first_masked_tile=first_masked_tile,
        hidden=_hidden(position, key[:, first_masked_tile * KEYS_PER_TILE :], layer).to(device),
    )


def _page_rows(
    metadata: TorchMetadata, layer: AttentionLayerSpec, items: list[_Item], num_key_tiles: int
) -> torch.Tensor:
    rows = torch.tensor([item.span.row for item in items], device=metadata.block_table.device)
    first_blocks = [item.first_tile * KEYS_PER_TILE // metadata.block_size for item in items]
    num_blocks = -(-num_key_tiles * KEYS_PER_TILE // metadata.block_size)
    return block_rows(metadata.block_table.index_select(0, rows), first_blocks, num_blocks, layer.num_kv_heads)


def _blank(unused_NL: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    return unused_NL[:, None].expand(-1, num_kv_heads, -1).flatten().nonzero().flatten()


def _hidden(position_NQ: torch.Tensor, key_NL: torch.Tensor, layer: AttentionLayerSpec) -> torch.Tensor:
    """[N, 1, J, Q, M, C]."""
    per_tile, rows = tokens_per_tile(layer), rows_per_tile(layer)
    num_requests = position_NQ.shape[0]
    row_position = position_NQ.repeat_interleave(layer.num_heads // layer.num_kv_heads, 1)
    row_position = row_position.view(num_requests, position_NQ.shape[1] // per_tile, -1)
    padding = row_position[:, :, :1].expand(-1, -1, rows - row_position.shape[2])
    row_position = torch.cat((row_position, padding), -1)[:, None, :, :, None]
    tile_key = key_NL.view(num_requests, -1, 1, 1, KEYS_PER_TILE)
    hidden = tile_key > row_position
    if layer.sliding_window is not None:
        hidden |= tile_key <= row_position - layer.sliding_window
    return hidden.unsqueeze(1)
