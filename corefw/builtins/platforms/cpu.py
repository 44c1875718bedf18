"""The CPU platform, torch-free half."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from corefw.host import Host
from corefw.interfaces.platform import DeviceDescription, DeviceRuntime, Platform, Proposal

if TYPE_CHECKING:
    from corefw.config.model_info import ModelInfo

__all__ = ["CpuPlatform"]

# x86 dot products on tiles or vectors of bfloat16, and Arm's name for the same.
_BFLOAT16_FLAGS = frozenset({"amx_bf16", "avx512_bf16", "bf16"})

# Prompts of 2,048 tokens together took a fifth less time in one step than in four (135M model, 2 cores with AMX), but
# a step delays every running request's next token.
_INTERACTIVE_STEP_TOKENS = 512
_OFFLINE_STEP_TOKENS = 2048


class CpuPlatform(Platform):
    """Every machine has one, so it is always available."""

    name: ClassVar[str] = "cpu"
    device_type: ClassVar[str] = "cpu"
    computes_on_host: ClassVar[bool] = True

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
        return ("cpu_kernels", "torch")

    def propose(self, model: ModelInfo, explicit: frozenset[str], *, interactive: bool) -> Sequence[Proposal]:
        del model
        # Whoever turned chunking off needs steps that hold a whole prompt.
        if explicit & {"scheduler.max_num_batched_tokens", "scheduler.enable_chunked_prefill"}:
            return ()
        tokens, reason = (
            (_INTERACTIVE_STEP_TOKENS, "a longer step on a CPU delays running requests too much")
            if interactive
            else (_OFFLINE_STEP_TOKENS, "long steps make the most of a CPU, and nobody waits for single tokens")
        )
        return (Proposal("scheduler", "max_num_batched_tokens", tokens, reason),)

    def runtime(self, local_rank: int) -> DeviceRuntime:
        from corefw.builtins.platforms.cpu_runtime import CpuRuntime

        del local_rank  # ranks on one machine share its memory
        return CpuRuntime(self._host)
