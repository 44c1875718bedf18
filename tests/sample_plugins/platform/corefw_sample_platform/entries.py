"""Entry points that aren't the class itself."""

from __future__ import annotations

from corefw.errors import PluginUnavailable
from corefw_sample_platform.toy import ToyPlatform

toy_path = "corefw_sample_platform.toy:ToyPlatform"


def toy() -> type[ToyPlatform]:
    """Return the class."""
    return ToyPlatform


def absent() -> None:
    """Say no without a reason."""


def absent_with_reason() -> str:
    """Say no with a reason."""
    raise PluginUnavailable("no toy driver on this machine")
