"""Figures of many measured requests."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from corefw.cli.bench.load import Measured
from corefw.errors import ConfigError

__all__ = ["METRICS", "format_summary", "parse_goodput", "percentile", "summarise"]

METRICS = {"ttft": "time to first token", "tpot": "time per output token after it", "itl": "time between chunks",
           "e2el": "whole request"}  # fmt: skip


def percentile(values: Sequence[float], percent: float) -> float:
    """By linear interpolation between the two nearest; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def parse_goodput(words: Sequence[str]) -> dict[str, float]:
    """``ttft:200 tpot:50`` → limits in milliseconds.

    Raises:
        ConfigError: not of that form.
    """
    limits = {}
    for word in words:
        name, _, value = word.partition(":")
        try:
            limits[name] = float(value)
        except ValueError:
            name = ""
        if name not in ("ttft", "tpot", "e2el") or limits[name] < 0:
            raise ConfigError(f"--goodput {word[:60]!r}: write ttft:MS, tpot:MS or e2el:MS")
    return limits


def summarise(
    measured: Sequence[Measured], duration_s: float, percents: Sequence[float], goodput: Mapping[str, float]
) -> dict[str, Any]:
    """Throughput, latencies in milliseconds, and the rate of requests within the goodput's limits."""
    good = [item for item in measured if not item.error]
    num_output = sum(item.num_output_tokens for item in good)
    num_input = sum(item.num_prompt_tokens for item in good)
    result: dict[str, Any] = {
        "duration": duration_s,
        "completed": len(good),
        "failed": len(measured) - len(good),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(good) / duration_s,
        "output_throughput": num_output / duration_s,
        "total_token_throughput": (num_input + num_output) / duration_s,
    }
    if goodput:
        result["request_goodput"] = sum(_within(item, goodput) for item in good) / duration_s
    for name in METRICS:
        values = [value * 1000 for item in good for value in _values(item, name)]
        result[f"mean_{name}_ms"] = statistics.fmean(values) if values else 0.0
        result[f"median_{name}_ms"] = percentile(values, 50)
        result[f"std_{name}_ms"] = statistics.pstdev(values) if values else 0.0
        for percent in percents:
            result[f"p{percent:g}_{name}_ms"] = percentile(values, percent)
    return result


def _values(item: Measured, metric: str) -> list[float]:
    if metric == "ttft":
        return [item.ttft_s]
    if metric == "itl":
        return item.itl_s
    if metric == "e2el":
        return [item.latency_s]
    # One token has no time between tokens.
    rest = item.num_output_tokens - 1
    return [(item.latency_s - item.ttft_s) / rest] if rest > 0 else []


def _within(item: Measured, limits: Mapping[str, float]) -> bool:
    return all(value * 1000 <= limit for name, limit in limits.items() for value in _values(item, name))


def format_summary(result: Mapping[str, Any], percents: Sequence[float]) -> str:
    """The figures as a table for people."""
    rows = [
        ("Successful requests", f"{result['completed']}"),
        ("Failed requests", f"{result['failed']}"),
        ("Duration (s)", f"{result['duration']:.2f}"),
        ("Input tokens", f"{result['total_input_tokens']}"),
        ("Output tokens", f"{result['total_output_tokens']}"),
        ("Requests per second", f"{result['request_throughput']:.2f}"),
        ("Output tokens per second", f"{result['output_throughput']:.2f}"),
        ("All tokens per second", f"{result['total_token_throughput']:.2f}"),
    ]
    if "request_goodput" in result:
        rows.append(("Goodput (requests per second)", f"{result['request_goodput']:.2f}"))
    for name, text in METRICS.items():
        rows.append((f"-- {name.upper()}: {text} (ms)", ""))
        rows += [(f"   {kind}", f"{result[f'{kind}_{name}_ms']:.2f}") for kind in ("mean", "median")]
        rows += [(f"   p{percent:g}", f"{result[f'p{percent:g}_{name}_ms']:.2f}") for percent in percents]
    rows.append(("Client: CPU time per output token (us)", f"{result['client_cpu_us_per_token']:.1f}"))
    rows.append(("Client: share of one core", f"{result['client_cpu_share']:.1%}"))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value:>12}".rstrip() for name, value in rows)
