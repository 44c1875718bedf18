"""The comparison as pictures, with matplotlib."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .rounds import Measurements

__all__ = ["draw"]

_CURVES = (
    ("throughput by concurrency", "prompts at once", "output tokens per second"),
    ("step_ms by batch", "rows of a decode step", "milliseconds a step"),
    ("step_ms by context", "tokens of context, one row", "milliseconds a step"),
)
_DISTRIBUTIONS = (
    ("at once ttft_ms", "many at once: time to first token, ms"),
    ("at once itl_ms", "many at once: time between tokens, ms"),
    ("server ttft_ms", "server: time to first token, ms"),
    ("server itl_ms", "server: time between tokens, ms"),
)


def draw(folder: Path, model: str, measured: Measurements, labels: dict[str, str]) -> list[Path]:
    """Write the pictures of a model; nothing for what wasn't measured.

    Args:
        folder: where to.
        model: its name, in files' names, too.
        measured: what they show.
        labels: of engines.
    """
    curves = [(axes, measured.samples[axes[0]]) for axes in _CURVES if axes[0] in measured.samples]
    distributions = [(axes, measured.samples[axes[0]]) for axes in _DISTRIBUTIONS if axes[0] in measured.samples]
    written = []
    if curves:
        figure, all_axes = _figure(model, 1, len(curves))
        for axis, ((name, below, beside), engines) in zip(all_axes, curves, strict=True):
            _curve(axis, engines, labels)
            axis.set(xlabel=below, ylabel=beside, title=name)
        written.append(_save(figure, folder / f"{model}-curves.svg"))
    if distributions:
        figure, all_axes = _figure(model, 2, (len(distributions) + 1) // 2)
        for axis, ((_, below), engines) in zip(all_axes, distributions, strict=False):
            _distribution(axis, engines, labels)
            axis.set(xlabel=below, ylabel="share that is faster")
        written.append(_save(figure, folder / f"{model}-latencies.svg"))
    return written


def _figure(title: str, rows: int, columns: int) -> tuple[Any, list[Any]]:
    figure_class: Any = importlib.import_module("matplotlib.figure").Figure  # no window, no global state
    figure = figure_class(figsize=(5.5 * columns, 4.2 * rows), layout="constrained")
    figure.suptitle(title)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _curve(axis: Any, engines: dict[str, Sequence[Any]], labels: dict[str, str]) -> None:
    for name, points in engines.items():
        axis.plot(*zip(*points, strict=True), marker="o", label=labels.get(name, name))
    axis.set_ylim(bottom=0)
    axis.legend(fontsize="small")
    axis.grid(alpha=0.3)


def _distribution(axis: Any, engines: dict[str, Sequence[Any]], labels: dict[str, str]) -> None:
    for name, values in engines.items():
        shares = [(place + 1) / len(values) for place in range(len(values))]
        axis.plot(sorted(values), shares, label=labels.get(name, name))
    axis.set_xlim(left=0)
    axis.legend(fontsize="small")
    axis.grid(alpha=0.3)


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path)
    return path
