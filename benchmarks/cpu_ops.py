"""All matrix products of one step in bfloat16: the kernels of corefw-cpu-kernels, F.linear, and oneDNN's own layout.

    python benchmarks/cpu_ops.py [--model smollm2-135m gemma3-270m] [--rows 1 8 32 512] [--seconds 4] [--json FILE]

The three are timed in turn, pass by pass, so that what disturbs one disturbs all. Each variant has weights of its own,
larger than the processor's inner caches together; a pass reads every weight once, as a step does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from corefw_cpu_kernels import library, products
from corefw_cpu_kernels.calls import Tape

__all__ = ["MODELS", "measure"]

Shape = tuple[int, int]  # outputs, inputs
Pass = Callable[[], object]


def _decoder(width: int, qkv: int, attended: int, inner: int, num_layers: int, vocabulary: int) -> list[Shape]:
    layer = [(qkv, width), (width, attended), (2 * inner, width), (width, inner)]
    return [*layer * num_layers, (vocabulary, width)]


MODELS: dict[str, list[Shape]] = {
    "smollm2-135m": _decoder(576, 960, 576, 1536, 30, 49_152),
    "gemma3-270m": _decoder(640, 1536, 1024, 2048, 18, 262_144),
    "tiny": _decoder(64, 96, 64, 128, 2, 512),
}


def _passes(shapes: list[Shape], num_rows: int) -> dict[str, Pass]:
    noise = torch.Generator().manual_seed(0)
    inputs = {width: torch.randn(num_rows, width, generator=noise).bfloat16() for _, width in shapes}
    plain = [(torch.randn(shape, generator=noise) / 50).bfloat16() for shape in shapes]
    passes: dict[str, Pass] = {"F.linear": lambda: [F.linear(inputs[w.shape[1]], w) for w in plain]}
    packed = [products.pack(weight) for weight in plain]
    tape = Tape()
    with tape.record():
        for (outputs, width), weight in zip(shapes, packed, strict=True):
            products.linear(outputs, inputs[width], weight, None)
    passes["cpu_kernels"] = tape.replay
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        with torch.inference_mode():
            blocked = [torch.ops.mkldnn._reorder_linear_weight(weight) for weight in plain]
        pointwise = torch.ops.mkldnn._linear_pointwise.default
        passes["oneDNN prepacked"] = lambda: [
            pointwise(inputs[width], weight, None, "none", [], "")
            for (_, width), weight in zip(shapes, blocked, strict=True)
        ]
    return passes


def measure(shapes: list[Shape], num_rows: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of each variant, and how fast ours reads its weights and computes."""
    passes = _passes(shapes, num_rows)
    taken: dict[str, list[float]] = {name: [] for name in passes}
    for run in passes.values():
        run()
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s or len(taken["F.linear"]) < 3:
        for name, run in passes.items():
            start_s = time.perf_counter()
            run()
            taken[name].append((time.perf_counter() - start_s) * 1e3)
    median_ms = {name: statistics.median(times) for name, times in taken.items()}
    ours_ms, num_weights = median_ms["cpu_kernels"], sum(outputs * inputs for outputs, inputs in shapes)
    return {
        "rows": num_rows,
        "num_passes": len(taken["F.linear"]),
        "median_ms": {name: round(value, 3) for name, value in median_ms.items()},
        "least_ms": {name: round(min(times), 3) for name, times in taken.items()},
        "ratio_to_cpu_kernels": {name: round(value / ours_ms, 2) for name, value in median_ms.items()},
        "weights_gb_per_s": round(num_weights * 2 / ours_ms / 1e6, 1),
        "tflop_per_s": round(num_weights * 2 * num_rows / ours_ms / 1e9, 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=sorted(MODELS), default=["smollm2-135m"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 32, 512])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each number of rows")
    parser.add_argument("--json", type=Path, help="file to write")
    args = parser.parse_args()
    if (reason := library.unavailable()) is not None:
        print(f"no kernels here: {reason}", file=sys.stderr)
        return 1
    results = {
        "level": library.level(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "models": {name: [measure(MODELS[name], rows, args.seconds) for rows in args.rows] for name in args.model},
    }
    text = json.dumps(results, indent=2)
    print(text)
    if args.json is not None:
        args.json.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
