"""The provider of last resort: plain torch for every op, batch-invariant in float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from corefw.builtins.ops import half_precision
from corefw.builtins.ops.packed_linear import can_pack, pack, packed_linear
from corefw.builtins.ops.row_tiles import choose_tiles, matmul_rows
from corefw.interfaces.op_provider import OpProvider, OpRequest
from corefw.models.ops import definitions

__all__ = ["TorchOps"]

_KERNELS: dict[str, Callable[..., Any]] = {
    "linear": definitions.linear,
    "embedding": definitions.embedding,
    "rms_norm": definitions.rms_norm,
    "add_rms_norm": definitions.add_rms_norm,
    "rms_norm_plus_one": definitions.rms_norm_plus_one,
    "add_rms_norm_plus_one": definitions.add_rms_norm_plus_one,
    "silu_and_mul": definitions.silu_and_mul,
    "gelu_tanh_and_mul": definitions.gelu_tanh_and_mul,
    "soft_cap": definitions.soft_cap,
    "rotary_embedding": definitions.rotary_embedding,
    "quantized_linear": definitions.quantized_linear,
    "quantized_embedding": definitions.quantized_embedding,
    "most_likely": definitions.most_likely,
    "drawn": definitions.drawn,
}
_HALF_PRECISION: dict[str, Callable[..., Any]] = {
    "rms_norm": half_precision.rms_norm,
    "add_rms_norm": half_precision.add_rms_norm,
    "rotary_embedding": half_precision.rotary_embedding,
}
_IN_BLOCKS = frozenset({"quantized_linear", "quantized_embedding"})
_ROWWISE_IN_ANY_DTYPE = frozenset({"embedding", "quantized_embedding", "rotary_embedding", "most_likely", "drawn"})


class TorchOps(OpProvider):
    """Torch's own kernels. In float32 results never depend on the batch; elsewhere the fastest call is taken."""

    name: ClassVar[str] = "torch"
    rank: ClassVar[int] = 0

    def supports(self, request: OpRequest) -> str | None:
        if request.op not in _KERNELS:
            return f"no kernel for {request.op}"
        if request.op in _IN_BLOCKS and request.device_type != "cpu":
            return "blocks are widened on cpu only"
        needs_order = request.batch_invariant and request.op not in _ROWWISE_IN_ANY_DTYPE
        if needs_order and (request.dtype != "float32" or request.device_type != "cpu"):
            return f"no fixed order of additions in {request.dtype} on {request.device_type}"
        return None

    def kernel(self, request: OpRequest) -> Callable[..., Any]:
        if request.batch_invariant and request.op == "linear":
            return _tiled_linear(request.shape["in_features"], request.shape["out_features"])
        if request.batch_invariant and request.op == "quantized_linear":
            return _tiled_widening(request.shape["in_features"], request.shape["out_features"])
        if request.batch_invariant:
            return _IN_ORDER.get(request.op, _KERNELS[request.op])
        if _is_packed(request):
            return packed_linear()
        halves = _HALF_PRECISION if request.dtype in ("bfloat16", "float16") else {}
        return halves.get(request.op, _KERNELS[request.op])

    def widens(self, request: OpRequest) -> bool:
        return request.op in _IN_BLOCKS

    def prepare_weight(self, request: OpRequest, weight: torch.Tensor) -> torch.Tensor:
        return pack(weight) if _is_packed(request) else weight


def _is_packed(request: OpRequest) -> bool:
    """In bfloat16 on a CPU that has it. Where results mustn't depend on the batch, tiles of plain weights are used."""
    return (
        request.op == "linear"
        and (request.device_type, request.dtype) == ("cpu", "bfloat16")
        and not request.batch_invariant
        and can_pack()
    )


def _tiled_linear(in_features: int, out_features: int) -> Callable[..., torch.Tensor]:
    choose_tiles(in_features, out_features)  # measure now, not in the first step

    def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        product = matmul_rows(input, weight, choose_tiles(in_features, out_features))
        return product if bias is None else product + bias

    return linear


def _tiled_widening(in_features: int, out_features: int) -> Callable[..., torch.Tensor]:
    """As with the dequantised weight, bit for bit."""
    linear = _tiled_linear(in_features, out_features)

    def quantized_linear(
        input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, layout: str
    ) -> torch.Tensor:
        values = definitions.dequantised(weight, layout, in_features).to(input.dtype)
        return linear(definitions.rounded_inputs(input, layout), values, bias)

    return quantized_linear


def _silu_and_mul_in_order(input: torch.Tensor) -> torch.Tensor:
    # torch's silu and sigmoid take another exp in the tail of a vectorised loop, so a value's bits would depend on its
    # place; exp alone doesn't, and division and multiplication round exactly.
    gate, up = input.chunk(2, dim=-1)
    return gate / (torch.exp(-gate) + 1.0) * up


def _gelu_tanh_and_mul_in_order(input: torch.Tensor) -> torch.Tensor:
    # As above: torch's gelu differs in the tail of a vectorised loop, its tanh doesn't.
    gate, up = input.chunk(2, dim=-1)
    inner = (gate + gate * gate * gate * 0.044715) * math.sqrt(2 / math.pi)
    return (torch.tanh(inner) + 1.0) * gate * 0.5 * up


_IN_ORDER: dict[str, Callable[..., torch.Tensor]] = {
    "silu_and_mul": _silu_and_mul_in_order,
    "gelu_tanh_and_mul": _gelu_tanh_and_mul_in_order,
}
