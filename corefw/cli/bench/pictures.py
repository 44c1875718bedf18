"""Pictures of a benchmark, with matplotlib where it is installed."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corefw.cli.bench.load import Measured
from corefw.errors import ConfigError

__all__ = ["draw", "require"]


def require(path: Path) -> None:
    """Say at once, not after the benchmark, that the picture can't be made.

    Raises:
        ConfigError: matplotlib isn't installed, the path ends in none of its formats, or its directory doesn't exist.
    """
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        raise ConfigError("--plot needs matplotlib; install it with: pip install 'corefw[bench]'") from None
    figure_class: Any = importlib.import_module("matplotlib.figure").Figure
    formats = figure_class().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in formats:
        raise ConfigError(f"--plot {str(path)!r}: end the name in one of {', '.join(f'.{name}' for name in formats)}")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot {str(path)!r}: there is no directory {str(path.parent)!r}; make it first")


def draw(path: Path, measured: Sequence[Measured], title: str) -> None:
    """Write distributions of the latencies and when each request ran, as one picture.

    Args:
        path: its ending chooses the format (``.png``, ``.svg`` …).
        measured: requests; failed ones are left out.
        title: above it.
    """
    figure_class: Any = importlib.import_module("matplotlib.figure").Figure  # no window, no global state
    good = [item for item in measured if not item.error]
    figure = figure_class(figsize=(11, 7), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(2, 2)
    distributions = {
        "time to first token (ms)": [item.ttft_s * 1000 for item in good],
        "time between chunks (ms)": [gap * 1000 for item in good for gap in item.itl_s],
        "whole request (ms)": [item.latency_s * 1000 for item in good],
    }
    for axis, (name, values) in zip(axes.flat, distributions.items(), strict=False):
        axis.hist(values, bins=min(50, max(5, len(values) // 5)))
        axis.set_xlabel(name)
    timeline = axes.flat[3]
    timeline.barh(range(len(good)), [item.latency_s for item in good], left=[item.sent_s for item in good], height=1)
    timeline.barh(range(len(good)), [item.ttft_s for item in good], left=[item.sent_s for item in good], height=1)
    timeline.set_xlabel("seconds; until the first token, then until the end")
    timeline.set_ylabel("request")
    figure.savefig(path)
