"""A platform that says no."""

from __future__ import annotations

from collections.abc import Sequence

from corefw.interfaces.platform import DeviceRuntime, Platform


class ToyPlatform(Platform):
    """Has no hardware."""

    name = "toy"
    device_type = "toy"

    def unavailable_reason(self) -> str | None:
        """Never available."""
        return "toys have no hardware"

    def dtypes(self) -> Sequence[str]:
        """One."""
        return ("float32",)

    def attention_order(self) -> Sequence[str]:
        """None."""
        return ()

    def runtime(self, local_rank: int) -> DeviceRuntime:
        """Never reached."""
        raise NotImplementedError(local_rank)
