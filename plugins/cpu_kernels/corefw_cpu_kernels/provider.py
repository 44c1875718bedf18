"""The op provider: which ops the pack has kernels for, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import torch

from corefw.interfaces.graphs import GraphCapture
from corefw.interfaces.op_provider import OpProvider, OpRequest
from corefw_cpu_kernels import activations, blocks, choice, int8_rows, library, norms, positions, products
from corefw_cpu_kernels.graph_capture import CpuGraphCapture

__all__ = ["CpuKernels"]

_KERNELS: dict[str, Callable[..., Any]] = {
    "embedding": positions.embedding,
    "rms_norm": norms.rms_norm,
    "rms_norm_plus_one": norms.rms_norm_plus_one,
    "add_rms_norm": norms.add_rms_norm,
    "add_rms_norm_plus_one": norms.add_rms_norm_plus_one,
    "silu_and_mul": activations.silu_and_mul,
    "gelu_tanh_and_mul": activations.gelu_tanh_and_mul,
    "soft_cap": activations.soft_cap,
    "rotary_embedding": positions.rotary_embedding,
    "most_likely": choice.most_likely,
    "drawn": choice.drawn,
}
# Ops with a weight in blocks, and which of their sizes is a row's.
_IN_BLOCKS = {"quantized_linear": "in_features", "quantized_embedding": "width"}
_PACKING = 1  # counts changes of how ``blocks``, ``int8_rows`` and ``products`` lay weights out


class CpuKernels(OpProvider):
    """Kernels for bfloat16 on the processor. A row's result never depends on other rows, products aside."""

    name: ClassVar[str] = "cpu_kernels"
    rank: ClassVar[int] = 50

    def supports(self, request: OpRequest) -> str | None:
        if request.op != "linear" and request.op not in _KERNELS and request.op not in _IN_BLOCKS:
            return f"no kernel for {request.op}"
        if (request.device_type, request.dtype) != ("cpu", "bfloat16"):
            return f"kernels are for bfloat16 on cpu, not {request.dtype} on {request.device_type}"
        if request.op in ("linear", "quantized_linear") and request.batch_invariant:
            return "products of few and of many rows add up in another order"
        if request.op in _IN_BLOCKS and _home(request) is blocks and (reason := blocks.why_not(request.layout)):
            return reason
        return library.unavailable()

    def kernel(self, request: OpRequest) -> Callable[..., Any]:
        if request.op == "linear":
            return _linear(request.shape["out_features"])
        if request.op == "quantized_linear":
            return _home(request).linear_kernel(request.layout, request.shape["in_features"])
        if request.op == "quantized_embedding":
            return _home(request).embedding_kernel(request.layout)
        return _KERNELS[request.op]

    def graph_capture(self) -> GraphCapture | None:
        return CpuGraphCapture() if library.unavailable() is None else None

    def prepare_weight(self, request: OpRequest, weight: torch.Tensor) -> torch.Tensor:
        if request.op in _IN_BLOCKS:
            return _home(request).pack(weight, request.layout, request.shape[_IN_BLOCKS[request.op]])
        return products.pack(weight) if request.op == "linear" else weight

    def prepared_form(self) -> str | None:
        return None if library.unavailable() else f"{library.level()} {library.build()} {_PACKING}"

    def embeds_prepared(self, request: OpRequest) -> bool:
        return products.can_embed(request.shape["in_features"])


class _InBlocks(Protocol):
    """What the modules with kernels for weights in blocks have."""

    def pack(self, weight: torch.Tensor, layout: str, in_features: int) -> torch.Tensor: ...
    def linear_kernel(self, layout: str, in_features: int) -> Callable[..., torch.Tensor]: ...
    def embedding_kernel(self, layout: str) -> Callable[..., torch.Tensor]: ...


def _home(request: OpRequest) -> _InBlocks:
    """Whose the kernels for a layout are."""
    return int8_rows if int8_rows.computes(request.layout) else blocks


def _linear(num_outputs: int) -> Callable[..., torch.Tensor]:
    def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return products.linear(num_outputs, input, weight, bias)

    return linear
