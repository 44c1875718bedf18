"""The CPU platform, torch-free half."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from corefw.builtins.platforms.host import Host
from corefw.interfaces.platform import DeviceDescription, DeviceRuntime, Platform, Proposal

if TYPE_CHECKING:
    from corefw.config.model_info import ModelInfo

__all__ = ["CpuPlatform"]

# x86 dot products on tiles or vectors of bfloat16, and Arm's name for the same.
_BFLOAT16_FLAGS = frozenset({"amx_bf16", "avx512_bf16", "bf16"})

# Matrix products on a few cores gain nothing beyond some hundred rows; a longer step delays every running request.
_STEP_TOKENS = 512


class CpuPlatform(Platform):
    """Every machine has one, so it is always available."""

    name: ClassVar[str] = "cpu"
    device_type: ClassVar[str] = "cpu"

    def __init__(self, host: Host | None = None, dtypes: Sequence[str] = ()) -> None:
        self._host = host or Host()
        self._dtypes = dtypes

    @classmethod
    def from_capability(cls, device: DeviceDescription) -> CpuPlatform:
        """``features`` are the flags that Linux lists for the processor."""
        has_bfloat16 = bool(_BFLOAT16_FLAGS & set(device.features))
        return cls(dtypes=device.dtypes or (("bfloat16", "float32") if has_bfloat16 else ("float32",)))

    def unavailable_reason(self) -> str | None:
        return None

    def dtypes(self) -> Sequence[str]:
        if self._dtypes:
            return self._dtypes
        if self._host.cpu_flags() & _BFLOAT16_FLAGS:
            return ("bfloat16", "float32")
        return ("float32",)

    def attention_order(self) -> Sequence[str]:
        return ("torch",)

    def propose(self, model: ModelInfo, explicit: frozenset[str]) -> Sequence[Proposal]:
        del model
        # Whoever turned chunking off needs steps that hold a whole prompt.
        if explicit & {"scheduler.max_num_batched_tokens", "scheduler.enable_chunked_prefill"}:
            return ()
        reason = f"a CPU gains nothing from steps of more than {_STEP_TOKENS} tokens, and they delay running requests"
        return (Proposal("scheduler", "max_num_batched_tokens", _STEP_TOKENS, reason),)

    def runtime(self, local_rank: int) -> DeviceRuntime:
        from corefw.builtins.platforms.cpu_runtime import CpuRuntime

        del local_rank  # ranks on one machine share its memory
        return CpuRuntime(self._host)
