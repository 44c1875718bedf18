"""What corefw promises of its speed on a CPU, as ratios that one run checks."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .rounds import MACHINE, Measurements

__all__ = ["Criterion", "criteria", "ratio_of"]

_OWN_BF16, _OWN_GGUF = "corefw-bf16", "corefw-gguf"
_LLAMA = ("llama-gguf", "llama-gguf-plain")
_HOST_MS, _INPUTS_MS, _FLAT = 1.0, 0.5, 1.25


@dataclass(frozen=True, slots=True)
class Criterion:
    """One promise.

    Attributes:
        name: what it is about.
        value: what came out; None where something that it needs wasn't measured.
        limit: what it has to be at least, or at most.
        at_least: which of the two.
        spread: least and greatest value over the rounds.
        note: what it was compared with.
    """

    name: str
    value: float | None
    limit: float
    at_least: bool
    spread: tuple[float, float] | None = None
    note: str = ""

    @property
    def passed(self) -> bool | None:
        """None where it can't be said."""
        if self.value is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(frozen=True, slots=True)
class _Ratio:
    value: float | None
    spread: tuple[float, float] | None
    note: str

    def against(self, name: str, limit: float, *, at_least: bool) -> Criterion:
        return Criterion(name, self.value, limit, at_least, self.spread, self.note)


def ratio_of(measured: Measurements, metric: str, own: str, peers: Sequence[str], *, more_is_better: bool) -> _Ratio:
    """An engine's figure over the best peer's: the median over rounds, since both met the machine as it was then."""
    medians = {peer: measured.median(metric, peer) for peer in peers}
    known = {peer: value for peer, value in medians.items() if value is not None}
    values = measured.figures.get(metric, {}).get(own)
    if not known or not values:
        return _Ratio(None, None, "not measured" if not values else "no peer was measured")
    best = (max if more_is_better else min)(known, key=lambda peer: known[peer])
    pairs = zip(values, measured.figures[metric][best], strict=False)
    ratios = [value / other for value, other in pairs if other]
    if not ratios:
        return _Ratio(None, None, f"{best} measured nothing")
    return _Ratio(statistics.median(ratios), (min(ratios), max(ratios)), f"against {best}, {known[best]:.4g}")


def criteria(
    measured: Measurements, kinds: dict[str, str], others: dict[str, Measurements], host: dict[str, Any] | None
) -> list[Criterion]:
    """All of them.

    Args:
        measured: of the first model.
        kinds: of all engines, by name.
        others: of further models, by name.
        host: what ``benchmarks/host_cost.py`` found.
    """
    sixteen = [name for name, kind in kinds.items() if kind == "bf16" and name != _OWN_BF16]
    peers = [name for name in kinds if not name.startswith("corefw")]
    found = [*_single(measured, sixteen, peers), *_many(measured, sixteen, peers), *_served(measured, peers)]
    found += [*_starts(measured), *_memory(measured), *_accuracy(measured), *_host(host)]
    for model, figures in others.items():
        found += _second(model, figures, sixteen)
    return found


def _single(measured: Measurements, sixteen: list[str], peers: list[str]) -> Iterator[Criterion]:
    deep, empty, ttft = "single decode_deep", "single decode_empty", "single ttft_ms"
    rate = ratio_of(measured, deep, _OWN_BF16, sixteen, more_is_better=True)
    yield rate.against("single stream, bf16: decode against the best 16-bit peer", 1.1, at_least=True)
    bound = ratio_of(measured, deep, _OWN_BF16, [MACHINE], more_is_better=True)
    yield bound.against("single stream, bf16: decode against what memory bandwidth allows", 0.85, at_least=True)
    for metric, where, limit in ((empty, "from an empty context", 1.2), (deep, "behind the long prompt", 1.3)):
        rate = ratio_of(measured, metric, _OWN_GGUF, _LLAMA, more_is_better=True)
        yield rate.against(f"single stream, GGUF file: decode against llama.cpp, {where}", limit, at_least=True)
    for own, what in ((_OWN_BF16, "bf16"), (_OWN_GGUF, "GGUF file")):
        first = ratio_of(measured, ttft, own, peers, more_is_better=False)
        yield first.against(f"single stream, {what}: time to first token against the best peer", 1.0, at_least=False)


def _many(measured: Measurements, sixteen: list[str], peers: list[str]) -> Iterator[Criterion]:
    batch = "at_once tokens_per_s"
    rate = ratio_of(measured, batch, _OWN_BF16, sixteen, more_is_better=True)
    yield rate.against("many at once, bf16: tokens per second against the best 16-bit peer", 1.5, at_least=True)
    rate = ratio_of(measured, batch, _OWN_GGUF, _LLAMA, more_is_better=True)
    yield rate.against("many at once, GGUF file: tokens per second against llama.cpp", 3.0, at_least=True)
    for state, limit in (("cold", 0.8), ("warm", 0.75)):
        time = ratio_of(measured, f"shared {state}_s", _OWN_BF16, peers, more_is_better=False)
        yield time.against(f"shared prompt, {state}, bf16: time against the best peer", limit, at_least=False)


def _served(measured: Measurements, peers: list[str]) -> Iterator[Criterion]:
    for own, what in ((_OWN_BF16, "bf16"), (_OWN_GGUF, "GGUF file")):
        rate = ratio_of(measured, "server tokens_per_s", own, peers, more_is_better=True)
        yield rate.against(f"server, {what}: tokens per second against the best peer", 1.8, at_least=True)
        gap = ratio_of(measured, "server itl_ms", own, peers, more_is_better=False)
        yield gap.against(f"server, {what}: median time between tokens against the best peer", 1.0, at_least=False)
        first = ratio_of(measured, "server ttft_p99_ms", own, peers, more_is_better=False)
        yield first.against(f"server, {what}: 99th percentile of time to first token", 1.0, at_least=False)


def _starts(measured: Measurements) -> Iterator[Criterion]:
    torch_s = measured.median("start import_torch_s", MACHINE)
    for own, what in ((_OWN_GGUF, "GGUF file"), (_OWN_BF16, "bf16")):
        for way in ("library", "server"):
            cold = measured.median(f"start {way}_cold_s", own)
            yield Criterion(
                f"start to first token, {what}, {way}, nothing kept of earlier starts (s)", cold, 2.5, False
            )
            warm = measured.median(f"start {way}_s", own)
            limit = 0.8 + (torch_s or 0.0)
            note = f"0.8 s and import torch, {torch_s:.2f} s" if torch_s else ""
            known = warm if torch_s else None
            yield Criterion(f"start to first token, {what}, {way}, caches warm (s)", known, limit, False, note=note)


def _memory(measured: Measurements) -> Iterator[Criterion]:
    for own, what in ((_OWN_GGUF, "GGUF file"), (_OWN_BF16, "bf16")):
        weights, cache = measured.median("weights bytes", own), measured.median("kv_cache bytes", own)
        limit = (1.25 * (weights or 0) + (cache or 0)) / 2**20 + 350
        for way in ("library", "server"):
            held = measured.median(f"memory {way}_bytes", own)
            value = held / 2**20 if held and weights else None
            yield Criterion(
                f"memory after load, {what}, {way} (MiB)", value, limit, False, note="shared pages in parts"
            )


def _accuracy(measured: Measurements) -> Iterator[Criterion]:
    exact = measured.median("accuracy perplexity", "corefw-float32")
    for own, what, limit in (
        (_OWN_GGUF, "the GGUF file as it is stored", 0.005),
        ("corefw-int8", "int8 weights", 0.01),
        ("corefw-int4", "int4 weights", 0.05),
    ):
        value = measured.median("accuracy perplexity", own)
        worse = value / exact - 1 if value and exact else None
        note = f"{value:.4f} against {exact:.4f} in float32" if value and exact else ""
        yield Criterion(f"perplexity, {what}: worse than float32 by (share)", worse, limit, False, note=note)


def _host(host: dict[str, Any] | None) -> Iterator[Criterion]:
    def cost(point: dict[str, Any], parts: Sequence[str]) -> float:
        return sum(point["corefw"][part]["median_ms"] for part in parts)

    scheduling = ("schedule", "update")
    series = host or {}
    base = next(iter(series.get("waiting", ())), None)
    name = f"host, {base['running']} running" if base else "host"
    yield Criterion(f"{name}: scheduling and updating (ms)", base and cost(base, scheduling), _HOST_MS, False)
    preparing = base and cost(base, ("batch", "inputs", "metadata"))
    yield Criterion(f"{name}: preparing inputs (ms)", preparing, _INPUTS_MS, False)
    for what in ("waiting", "context"):
        costs = [cost(point, scheduling) for point in series.get(what, ())]
        growth = costs[-1] / costs[0] if len(costs) > 1 else None
        note = f"{series[what][0][what]} to {series[what][-1][what]}" if growth else ""
        yield Criterion(f"{name}: growth with {what}", growth, _FLAT, False, note=note)


def _second(model: str, measured: Measurements, sixteen: list[str]) -> Iterator[Criterion]:
    better: tuple[tuple[str, str, bool], ...] = (
        ("single ttft_ms", "time to first token", False),
        ("single decode_deep", "decode", True),
        ("at_once tokens_per_s", "many at once", True),
    )
    for own, peers, what in ((_OWN_BF16, sixteen, "bf16"), (_OWN_GGUF, list(_LLAMA), "GGUF file")):
        for metric, text, more in better:
            ratio = ratio_of(measured, metric, own, peers, more_is_better=more)
            yield ratio.against(f"{model}, {what}: {text} against the best such peer", 1.0, at_least=more)
