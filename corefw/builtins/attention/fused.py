"""The fast path of half precision: torch's fused attention for decodes of like lengths and prompts of one length.

Shapes: T tokens, N requests, H query heads, K KV heads, G = H/K, D head size, S tokens of one request, L keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812

from corefw.builtins.attention.metadata import Span, TorchMetadata
from corefw.builtins.attention.pages import block_rows, gather_blocks
from corefw.interfaces.attention import AttentionLayerSpec

__all__ = ["fused_attention"]

_MAX_KEYS = 2**16  # gathered keys a group
_MAX_STRETCH = 1.25
_SLACK = 64  # keys; below that, padding costs less than another call


@dataclass(frozen=True, slots=True)
class _Group:
    """Requests that are computed by one call.

    Attributes:
        tokens: [N·S] their tokens; a slice when they stand together, in order.
        num_requests: N.
        num_keys: L.
        page_rows: see ``block_rows``.
        blank: rows of the gathered blocks, seen as [N·K·L', 2·D] with L' up to the last block's end, that hold no token
            of the request.
        visible: [N, 1, S, L] keys that a query sees; None when it sees all, or by ``causal``.
        causal: the requests' first tokens: query i sees keys up to i.
    """

    tokens: torch.Tensor | slice
    num_requests: int
    num_keys: int
    page_rows: torch.Tensor
    blank: torch.Tensor | None
    visible: torch.Tensor | None
    causal: bool


def fused_attention(
    query_THD: torch.Tensor, pages: torch.Tensor, metadata: TorchMetadata, layer: AttentionLayerSpec
) -> torch.Tensor:
    """[T, H, D]; tokens beyond the batch get zeros."""
    key = ("fused", layer.num_kv_heads, layer.sliding_window)
    groups = metadata.plan(key, lambda: _plan(metadata, layer))
    if len(groups) == 1 and groups[0].tokens == slice(0, query_THD.shape[0]):
        return _attend(query_THD, pages, groups[0], layer)
    out_THD = torch.zeros_like(query_THD, memory_format=torch.contiguous_format)
    for group in groups:
        if isinstance(group.tokens, slice):
            out_THD[group.tokens] = _attend(query_THD[group.tokens], pages, group, layer)
        else:
            mixed = _attend(query_THD.index_select(0, group.tokens), pages, group, layer)
            out_THD.index_copy_(0, group.tokens, mixed)
    return out_THD


def _attend(query: torch.Tensor, pages: torch.Tensor, group: _Group, layer: AttentionLayerSpec) -> torch.Tensor:
    kv = gather_blocks(pages, group.page_rows, group.num_requests).to(query.dtype)
    if group.blank is not None:
        kv.view(-1, kv.shape[-1]).index_fill_(0, group.blank, 0.0)  # what lies there may be NaN
    kv = kv[:, :, : group.num_keys]
    attend = _one_token_each if query.shape[0] == group.num_requests else _prompts
    return attend(query, kv[..., : layer.head_size], kv[..., layer.head_size :], group, layer)


def _one_token_each(
    query_NHD: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: _Group, layer: AttentionLayerSpec
) -> torch.Tensor:
    """The G heads that share a KV head stand where a prompt has its tokens."""
    query = query_NHD.unflatten(1, (layer.num_kv_heads, -1))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=group.visible, scale=layer.scale).flatten(1, 2)


def _prompts(
    query_THD: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: _Group, layer: AttentionLayerSpec
) -> torch.Tensor:
    query = query_THD.unflatten(0, (group.num_requests, -1)).transpose(1, 2)
    mixed = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=group.visible,
        is_causal=group.causal,
        scale=layer.scale,
        enable_gqa=layer.num_heads != layer.num_kv_heads,
    )
    return mixed.transpose(1, 2).flatten(0, 1)


def _plan(metadata: TorchMetadata, layer: AttentionLayerSpec) -> list[_Group]:
    decodes = [span for span in metadata.spans if span.num_tokens == 1]
    groups = _prompt_groups([span for span in metadata.spans if span.num_tokens > 1], layer)
    for span in sorted(decodes, key=lambda span: -_num_keys(span, layer)):
        longest = _num_keys(groups[-1][0], layer) if groups and groups[-1][0].num_tokens == 1 else 0
        near = longest <= max(_num_keys(span, layer) * _MAX_STRETCH, _num_keys(span, layer) + _SLACK)
        if longest and near and (len(groups[-1]) + 1) * longest <= _MAX_KEYS:
            groups[-1].append(span)
        else:
            groups.append([span])
    return [_group(metadata, layer, spans) for spans in groups]


def _prompt_groups(spans: list[Span], layer: AttentionLayerSpec) -> list[list[Span]]:
    """Whole prompts of one length together; those that need a mask one by one, for it would be as large as all keys."""
    groups: list[list[Span]] = []
    by_length: dict[int, list[Span]] = {}
    for span in spans:
        if span.num_tokens == span.length and _sees_all(span, layer):
            by_length.setdefault(span.length, []).append(span)
        else:
            groups.append([span])
    for length, alike in by_length.items():
        at_once = max(1, _MAX_KEYS // length)
        groups += [alike[index : index + at_once] for index in range(0, len(alike), at_once)]
    return groups


def _first_key(span: Span, layer: AttentionLayerSpec) -> int:
    """The first key that any token of the span sees."""
    return 0 if layer.sliding_window is None else max(0, span.length - span.num_tokens + 1 - layer.sliding_window)


def _num_keys(span: Span, layer: AttentionLayerSpec) -> int:
    return span.length - _first_key(span, layer)


def _group(metadata: TorchMetadata, layer: AttentionLayerSpec, spans: list[Span]) -> _Group:
    table, block_size = metadata.block_table, metadata.block_size
    spans = sorted(spans, key=lambda span: span.start)
    first_blocks = [_first_key(span, layer) // block_size for span in spans]
    num_keys = max(span.length - first * block_size for span, first in zip(spans, first_blocks, strict=True))
    rows = torch.tensor([span.row for span in spans], device=table.device)
    key = torch.tensor(first_blocks)[:, None] * block_size + torch.arange(num_keys)
    length = torch.tensor([span.length for span in spans])[:, None]
    offset = torch.arange(spans[0].num_tokens)
    position = length - spans[0].num_tokens + offset
    visible = key[:, None] <= position[:, :, None]
    if layer.sliding_window is not None:
        visible &= key[:, None] > position[:, :, None] - layer.sliding_window
    unused = key >= length
    causal = num_keys == spans[0].num_tokens > 1 and _sees_all(spans[0], layer)
    num_blocks = -(-num_keys // block_size)
    unused = F.pad(unused, (0, num_blocks * block_size - num_keys))
    blank = unused[:, None].expand(-1, layer.num_kv_heads, -1).flatten().nonzero().flatten()
    tokens = (torch.tensor([span.start for span in spans])[:, None] + offset).flatten()
    first, num_tokens = spans[0].start, tokens.shape[0]
    in_order = torch.equal(tokens, torch.arange(first, first + num_tokens))
    return _Group(
        tokens=slice(first, first + num_tokens) if in_order else tokens.to(table.device),
        num_requests=len(spans),
        num_keys=num_keys,
        page_rows=block_rows(table.index_select(0, rows), first_blocks, num_blocks, layer.num_kv_heads),
        blank=blank.to(table.device) if blank.numel() else None,
        visible=None if causal or bool(visible.all()) else visible.unsqueeze(1).to(table.device),
        causal=causal,
    )


def _sees_all(span: Span, layer: AttentionLayerSpec) -> bool:
    return layer.sliding_window is None or layer.sliding_window >= span.length
