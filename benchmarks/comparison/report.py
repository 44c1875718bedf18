"""The comparison as Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .criteria import Criterion
from .rounds import MACHINE, Measurements

__all__ = ["markdown"]

# Column, metric, what its values are divided by.
_COLUMNS: tuple[tuple[str, str, float], ...] = (
    ("start to first token, s", "start library_s", 1),
    ("its server, s", "start server_s", 1),
    ("memory, MiB", "memory library_bytes", 2**20),
    ("single: TTFT, ms", "single ttft_ms", 1),
    ("decode, tok/s", "single decode_deep", 1),
    ("from empty, tok/s", "single decode_empty", 1),
    ("at once, tok/s", "at_once tokens_per_s", 1),
    ("shared cold, s", "shared cold_s", 1),
    ("warm, s", "shared warm_s", 1),
    ("server: TTFT, ms", "server ttft_ms", 1),
    ("its p99, ms", "server ttft_p99_ms", 1),
    ("ITL, ms", "server itl_ms", 1),
    ("tok/s", "server tokens_per_s", 1),
    ("perplexity", "accuracy perplexity", 1),
)
_WORDS = {True: "yes", False: "**no**", None: "not measured"}


def markdown(result: dict[str, Any], measured: dict[str, Measurements], found: Sequence[Criterion]) -> str:
    """The whole page."""
    lines = ["# corefw beside other engines", "", *_about(result), ""]
    for model, figures in measured.items():
        lines += [f"## {model}", "", *_table(result["engines"], figures), "", *_equality(figures), ""]
        lines += [f"- {engine} dropped out: {reason.splitlines()[0]}" for engine, reason in figures.failures]
    return "\n".join([*lines, "## Promises", "", *promises(found)]) + "\n"


def _about(result: dict[str, Any]) -> list[str]:
    machine, sizes = result["machine"], result["sizes"]
    single, many, shared, server = sizes["single"], sizes["at_once"], sizes["shared"], sizes["server"]
    return [
        f"{machine['cpu']}, {machine['cores']} cores, which every engine uses all of, and the load generator of the "
        f"server's clients with it; {result['date']}. Engines took turns in {sizes['rounds']} rounds after a warm-up; "
        "figures are medians.",
        "",
        f"Single: {single[0]} tokens in, {single[1]} out. At once: {many[0]} prompts of about {many[1]} tokens, "
        f"{many[2]} out. Shared: {shared[0]} prompts that share {shared[1]} tokens, {shared[3]} out; warm: others with "
        f"the same beginning after them. Server: {server[0]} clients that stream, {server[1]} requests of {server[2]} "
        f"tokens in, {server[3]} out. All get the same token ids, no token ends an output.",
        "",
        *[f"- {about['label']}: {about['weights']}; {about['version']}" for about in result["engines"].values()],
    ]


def _table(engines: dict[str, Any], measured: Measurements) -> list[str]:
    columns = [column for column in _COLUMNS if any(name in engines for name in measured.figures.get(column[1], ()))]
    lines = ["| | " + " | ".join(name for name, *_ in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, about in [*engines.items(), (MACHINE, {"label": "what memory bandwidth allows"})]:
        cells = [_cell(measured.median(metric, name), scale) for _, metric, scale in columns]
        if any(cells):
            lines.append(f"| {about['label']} | " + " | ".join(cells) + " |")
    return lines


def _cell(value: float | None, scale: float) -> str:
    if value is None or math.isnan(value):
        return ""
    shown = value / scale
    return f"{shown:.0f}" if shown >= 100 else f"{shown:.3g}"


def _equality(measured: Measurements) -> list[str]:
    """How far engines say the same; numbers of 16 bits round differently, so that outputs part somewhere."""
    lines = []
    for left, right in (("corefw-bf16", "transformers"), ("corefw-bf16", "vllm-bf16"), ("corefw-gguf", "llama-gguf")):
        shares = []
        for what in ("single tokens", "at once tokens"):
            outputs = measured.samples.get(what, {})
            for mine, theirs in zip(outputs.get(left, ()), outputs.get(right, ()), strict=False):
                shares.append(_common(mine, theirs) / len(mine))
        if shares:
            whole = sum(share == 1 for share in shares)
            lines.append(
                f"- {left} and {right}: {whole} of {len(shares)} outputs are equal, on average their first "
                f"{sum(shares) / len(shares):.0%}"
            )
    return lines


def _common(mine: Sequence[int], theirs: Sequence[int]) -> int:
    for place, (left, right) in enumerate(zip(mine, theirs, strict=False)):
        if left != right:
            return place
    return min(len(mine), len(theirs))


def promises(found: Sequence[Criterion]) -> list[str]:
    """One line each, with what came out and whether it is kept."""
    lines = ["| promise | measured | over the rounds | wanted | kept | |", "|---|---|---|---|---|---|"]
    for one in found:
        value = "" if one.value is None else f"{one.value:.3g}"
        spread = "" if one.spread is None else f"{one.spread[0]:.3g} to {one.spread[1]:.3g}"
        sign = "≥" if one.at_least else "≤"
        lines.append(
            f"| {one.name} | {value} | {spread} | {sign} {one.limit:.3g} | {_WORDS[one.passed]} | {one.note} |"
        )
    return lines
