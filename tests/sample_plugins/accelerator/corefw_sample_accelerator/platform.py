"""The torch-free half of a platform. It answers for the machine's device, or for one of a capability file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corefw.errors import PluginUnavailable
from corefw.interfaces.platform import DeviceDescription, DeviceRuntime, Platform, Proposal

if TYPE_CHECKING:
    from corefw.sdk.config import ModelInfo

_LARGE_BYTES = 64 * 2**30


class BigChipPlatform(Platform):
    """Second and later generations compute in bfloat16."""

    name = "bigchip"
    device_type = "bigchip"

    def __init__(self, device: DeviceDescription | None = None) -> None:
        self._device = device

    @classmethod
    def from_capability(cls, device: DeviceDescription) -> BigChipPlatform:
        """Needs the generation."""
        if device.capability is None:
            raise PluginUnavailable("platform 'bigchip' needs the key capability: the chip's generation, such as 2.0")
        return cls(device)

    def unavailable_reason(self) -> str | None:
        """This machine has none."""
        return None if self._device else "no BigChip is plugged in"

    def dtypes(self) -> Sequence[str]:
        """By generation."""
        if self._device is None or float(self._device.capability or 0) < 2:
            return ("float32",)
        return self._device.dtypes or ("bfloat16", "float32")

    def attention_order(self) -> Sequence[str]:
        """Its own kernels, then whatever else runs here."""
        return ("bigchip_flash", "torch")

    def propose(self, model: ModelInfo, explicit: frozenset[str], *, interactive: bool) -> Sequence[Proposal]:
        """Larger steps where there is memory for them."""
        if self._device is None or (self._device.memory_bytes or 0) < _LARGE_BYTES:
            return ()
        return (Proposal("scheduler", "max_num_batched_tokens", 8192, "a BigChip with 64 GiB or more has room"),)

    def runtime(self, local_rank: int) -> DeviceRuntime:
        """Needs the hardware."""
        raise PluginUnavailable("no BigChip is plugged in")
