"""The op provider: which ops the pack has kernels for, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from corefw.interfaces.op_provider import OpProvider, OpRequest
from corefw_cpu_kernels import library, norms

__all__ = ["CpuKernels"]

_KERNELS: dict[str, Callable[..., Any]] = {
    "rms_norm": norms.rms_norm,
    "rms_norm_plus_one": norms.rms_norm_plus_one,
    "add_rms_norm": norms.add_rms_norm,
    "add_rms_norm_plus_one": norms.add_rms_norm_plus_one,
}


class CpuKernels(OpProvider):
    """Kernels for bfloat16 on the processor. A row's result never depends on other rows, matrix products aside."""

    name: ClassVar[str] = "cpu_kernels"
    rank: ClassVar[int] = 50

    def supports(self, request: OpRequest) -> str | None:
        if request.op not in _KERNELS:
            return f"no kernel for {request.op}"
        if (request.device_type, request.dtype) != ("cpu", "bfloat16"):
            return f"kernels are for bfloat16 on cpu, not {request.dtype} on {request.device_type}"
        return library.unavailable()

    def kernel(self, request: OpRequest) -> Callable[..., Any]:
        return _KERNELS[request.op]
