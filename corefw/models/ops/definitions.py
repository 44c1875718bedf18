"""The ops that decoders are made of.

Shapes: T tokens, E model width, I inner width, O output width, H query heads, K KV heads, D head size, P positions,
R rotated elements of a head (R ≤ D).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from corefw.models.loading.gguf_blocks import dequantise
from corefw.models.ops import filters
from corefw.models.ops.block_layout import W8A8, parse_layout
from corefw.models.ops.schema import Op, register_op

__all__ = [
    "ADD_RMS_NORM",
    "ADD_RMS_NORM_PLUS_ONE",
    "DRAWN",
    "EMBEDDING",
    "GELU_TANH_AND_MUL",
    "LINEAR",
    "MAX_RANDOM_ROWS",
    "MOST_LIKELY",
    "QUANTIZED_EMBEDDING",
    "QUANTIZED_LINEAR",
    "RMS_NORM",
    "RMS_NORM_PLUS_ONE",
    "ROTARY_EMBEDDING",
    "SILU_AND_MUL",
    "SOFT_CAP",
]


# Random rows are worked on in groups of this many, which bounds the memory of their float64 copies.
MAX_RANDOM_ROWS = 32


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """input [T, E], weight [O, E], bias [O] → [T, O]."""
    return F.linear(input, weight, bias)


def linear_fake(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    del bias
    return input.new_empty((input.shape[0], weight.shape[0]))


def dequantised(weight: torch.Tensor, layout: str, in_features: int) -> torch.Tensor:
    """Bytes of blocks, flat → [O, E] float32."""
    rows = []
    for segment in parse_layout(layout):
        num_bytes = segment.num_rows * in_features // segment.type.block_elements * segment.type.block_bytes
        part, weight = weight[:num_bytes], weight[num_bytes:]
        rows.append(torch.from_numpy(dequantise(part.numpy(), segment.type)).view(-1, in_features))
    return torch.cat(rows)


def rounded_inputs(input: torch.Tensor, layout: str) -> torch.Tensor:
    """The inputs of a product as the blocks of its weight want them; a layout is all ``W8A8`` or has none of it."""
    if parse_layout(layout)[0].type != W8A8:
        return input
    scale_T1 = input.float().abs().amax(-1, keepdim=True) / 127
    codes = torch.where(scale_T1 > 0, input.float() / scale_T1, 0).round_()
    return (codes * scale_T1).to(input.dtype)


def quantized_linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, layout: str) -> torch.Tensor:
    """input [T, E], weight: bytes of [O, E] in blocks as ``layout`` says, bias [O] → [T, O]."""
    values = dequantised(weight, layout, input.shape[-1]).to(input.dtype)
    return F.linear(rounded_inputs(input, layout), values, bias)


def quantized_linear_fake(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, layout: str
) -> torch.Tensor:
    del weight, bias
    return input.new_empty((input.shape[0], sum(segment.num_rows for segment in parse_layout(layout))))


def quantized_embedding(
    ids: torch.Tensor, weight: torch.Tensor, layout: str, width: int, dtype: torch.dtype
) -> torch.Tensor:
    """ids [T], weight: bytes of [V, E] in blocks as ``layout`` says, E is ``width`` → [T, E] in ``dtype``."""
    return F.embedding(ids, dequantised(weight, layout, width)).to(dtype)


def quantized_embedding_fake(
    ids: torch.Tensor, weight: torch.Tensor, layout: str, width: int, dtype: torch.dtype
) -> torch.Tensor:
    del layout
    return torch.empty((*ids.shape, width), device=weight.device, dtype=dtype)


def embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """ids [T], weight [V, E] → [T, E]."""
    return F.embedding(ids, weight)


def embedding_fake(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight.new_empty((*ids.shape, weight.shape[1]))


def rms_norm(input: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """input [T, E] → input / rms(input) · weight; statistics in float32."""
    wide = input.to(torch.float32)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale).to(input.dtype) * weight


def rms_norm_fake(input: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    del weight, eps
    return torch.empty_like(input, memory_format=torch.contiguous_format)


def add_rms_norm(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of input + residual, and that sum."""
    total = input + residual
    return rms_norm(total, weight, eps), total


def add_rms_norm_fake(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    del residual
    return rms_norm_fake(input, weight, eps), rms_norm_fake(input, weight, eps)


def rms_norm_plus_one(input: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """input [T, E] → input / rms(input) · (1 + weight); all in float32, rounded once."""
    wide = input.to(torch.float32)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * (1.0 + weight.to(torch.float32))).to(input.dtype)


def add_rms_norm_plus_one(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of input + residual, and that sum."""
    total = input + residual
    return rms_norm_plus_one(total, weight, eps), total


def silu_and_mul(input: torch.Tensor) -> torch.Tensor:
    """input [T, 2I] = gate | up → silu(gate) · up, [T, I]."""
    gate, up = input.chunk(2, dim=-1)
    return F.silu(gate) * up


def gelu_tanh_and_mul(input: torch.Tensor) -> torch.Tensor:
    """input [T, 2I] = gate | up → gelu(gate) · up, [T, I], gelu by its approximation with tanh."""
    gate, up = input.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


def gated_fake(input: torch.Tensor) -> torch.Tensor:
    return input.new_empty((*input.shape[:-1], input.shape[-1] // 2))


def soft_cap(input: torch.Tensor, cap: float) -> torch.Tensor:
    """input [T, O] → cap · tanh(input / cap)."""
    return torch.tanh(input / cap) * cap


def soft_cap_fake(input: torch.Tensor, cap: float) -> torch.Tensor:
    del cap
    return torch.empty_like(input, memory_format=torch.contiguous_format)


def most_likely(logits: torch.Tensor, num_ids: int) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [R, V] → the largest of the first ``num_ids`` of each row [R], and its id [R], the lowest among equals.

    A NaN counts as the largest.
    """
    values, ids = logits[:, :num_ids].max(dim=-1)
    return values, ids


def most_likely_fake(logits: torch.Tensor, num_ids: int) -> tuple[torch.Tensor, torch.Tensor]:
    del num_ids
    return logits.new_empty(len(logits)), logits.new_empty(len(logits), dtype=torch.int64)


def drawn(
    logits: torch.Tensor,
    num_ids: int,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    numbers: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [R, V] → the largest of the first ``num_ids`` of each row [R], and a token's id [R], drawn at random.

    temperature float64 [R]: 0 takes the most likely one, as does a row whose largest logit isn't finite. The
    filters top_k int64 [R] (0: none), top_p float64 [R] (1: none), min_p float64 [R] (0: none); numbers float64 [R] in
    (0, 1), at which the distribution over ids in rising order is inverted.
    """
    values, ids = most_likely(logits, num_ids)
    for rows in ((temperature > 0) & values.isfinite()).nonzero().squeeze(-1).split(MAX_RANDOM_ROWS):
        weights = filters.weights_of(filters.scaled_logits(logits[rows, :num_ids], temperature[rows]))
        filters.drop_unlikely(weights, min_p[rows])
        filters.keep_top(weights, top_k[rows], top_p[rows])
        ids[rows] = filters.choose(weights, numbers[rows])
    return values, ids


def drawn_fake(
    logits: torch.Tensor,
    num_ids: int,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    numbers: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    del temperature, top_k, top_p, min_p, numbers
    return most_likely_fake(logits, num_ids)


def _rotate(heads_THD: torch.Tensor, cos_T1R: torch.Tensor, sin_T1R: torch.Tensor) -> torch.Tensor:
    half = cos_T1R.shape[-1]
    first, second, rest = heads_THD.split((half, half, heads_THD.shape[-1] - 2 * half), dim=-1)
    first, second = first.to(cos_T1R.dtype), second.to(cos_T1R.dtype)
    turned = (first * cos_T1R - second * sin_T1R, second * cos_T1R + first * sin_T1R)
    return torch.cat([part.to(heads_THD.dtype) for part in turned] + [rest], dim=-1)


def rotary_embedding(
    query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, head_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn query [T, H·D] and key [T, K·D] by their positions [T], pairing element i with i + R/2.

    cos_sin [P, R] float32 has R/2 cosines, then R/2 sines; elements of a head beyond R pass through.
    """
    cos, sin = cos_sin.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
    return (
        _rotate(query.unflatten(-1, (-1, head_size)), cos, sin).flatten(1),
        _rotate(key.unflatten(-1, (-1, head_size)), cos, sin).flatten(1),
    )


def rotary_embedding_fake(
    query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, head_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    del positions, cos_sin, head_size
    return query.new_empty(query.shape), key.new_empty(key.shape)


LINEAR = register_op(Op("linear", "(Tensor input, Tensor weight, Tensor? bias) -> Tensor", linear, linear_fake))
EMBEDDING = register_op(Op("embedding", "(Tensor ids, Tensor weight) -> Tensor", embedding, embedding_fake))
QUANTIZED_LINEAR = register_op(
    Op(
        "quantized_linear",
        "(Tensor input, Tensor weight, Tensor? bias, str layout) -> Tensor",
        quantized_linear,
        quantized_linear_fake,
    )
)
QUANTIZED_EMBEDDING = register_op(
    Op(
        "quantized_embedding",
        "(Tensor ids, Tensor weight, str layout, int width, ScalarType dtype) -> Tensor",
        quantized_embedding,
        quantized_embedding_fake,
    )
)
RMS_NORM = register_op(Op("rms_norm", "(Tensor input, Tensor weight, float eps) -> Tensor", rms_norm, rms_norm_fake))
ADD_RMS_NORM = register_op(
    Op(
        "add_rms_norm",
        "(Tensor input, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)",
        add_rms_norm,
        add_rms_norm_fake,
    )
)
RMS_NORM_PLUS_ONE = register_op(
    Op("rms_norm_plus_one", "(Tensor input, Tensor weight, float eps) -> Tensor", rms_norm_plus_one, rms_norm_fake)
)
ADD_RMS_NORM_PLUS_ONE = register_op(
    Op(
        "add_rms_norm_plus_one",
        "(Tensor input, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)",
        add_rms_norm_plus_one,
        add_rms_norm_fake,
    )
)
SILU_AND_MUL = register_op(Op("silu_and_mul", "(Tensor input) -> Tensor", silu_and_mul, gated_fake))
GELU_TANH_AND_MUL = register_op(Op("gelu_tanh_and_mul", "(Tensor input) -> Tensor", gelu_tanh_and_mul, gated_fake))
SOFT_CAP = register_op(Op("soft_cap", "(Tensor input, float cap) -> Tensor", soft_cap, soft_cap_fake))
ROTARY_EMBEDDING = register_op(
    Op(
        "rotary_embedding",
        "(Tensor query, Tensor key, Tensor positions, Tensor cos_sin, int head_size) -> (Tensor, Tensor)",
        rotary_embedding,
        rotary_embedding_fake,
    )
)
MOST_LIKELY = register_op(
    Op("most_likely", "(Tensor logits, int num_ids) -> (Tensor, Tensor)", most_likely, most_likely_fake)
)
DRAWN = register_op(
    Op(
        "drawn",
        "(Tensor logits, int num_ids, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, Tensor numbers)"
        " -> (Tensor, Tensor)",
        drawn,
        drawn_fake,
    )
)
