"""Attention of one layer on the processor: the pack's kernels against the core's own backend, in turns.

    python benchmarks/cpu_attention.py [--contexts 128 512 2048 8192] [--batches 1 8 32] [--prompts 512 2048]

Prints the median time of a layer (write_cache and forward) and the ratio. Every call has the pages of another layer,
as many as the model has, so that the cache isn't in the processor's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from corefw.builtins.attention.torch_attention import TorchAttention
from corefw.interfaces.attention import AttentionBackend, AttentionBatch, AttentionLayerSpec
from corefw.interfaces.kv_cache import FullAttentionSpec
from corefw_cpu_kernels.attention import CpuKernelsAttention

BLOCK_SIZE = 16
BACKENDS: tuple[type[AttentionBackend], ...] = (CpuKernelsAttention, TorchAttention)


@dataclass(frozen=True)
class Case:
    """One step: requests that each have ``num_new`` tokens, the last of ``context``; ``shared`` tokens are the same."""

    name: str
    num_requests: int
    num_new: int
    context: int
    shared: int = 0


def layer_of(args: argparse.Namespace) -> AttentionLayerSpec:
    heads, kv_heads, size = args.shape
    return AttentionLayerSpec(
        name="layer",
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=size,
        scale=size**-0.5,
        sliding_window=args.window,
    )


def batch_of(case: Case) -> AttentionBatch:
    blocks = -(-case.context // BLOCK_SIZE)
    common = case.shared // BLOCK_SIZE
    own = torch.randperm(case.num_requests * blocks, generator=torch.Generator().manual_seed(0)) + 1
    table = own.view(case.num_requests, blocks).to(torch.int32)
    table[:, :common] = table[0, :common]
    at = torch.arange(case.context - case.num_new, case.context)
    slots = table[:, at // BLOCK_SIZE].long() * BLOCK_SIZE + at % BLOCK_SIZE
    return AttentionBatch(
        num_tokens=case.num_requests * case.num_new,
        query_starts=torch.arange(case.num_requests + 1, dtype=torch.int32) * case.num_new,
        seq_lens=torch.full((case.num_requests,), case.context, dtype=torch.int32),
        block_table=table,
        slot_mapping=slots.flatten(),
        block_size=BLOCK_SIZE,
    )


def step(
    backend: type[AttentionBackend], case: Case, layer: AttentionLayerSpec, num_layers: int, kv_dtype: str
) -> Callable[[], None]:
    """A function that runs the attention of all layers once."""
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=layer.num_kv_heads, head_size=layer.head_size, dtype=kv_dtype
    )
    batch = batch_of(case)
    num_pages = int(batch.block_table.max()) + 1
    shape = (num_layers, num_pages, *backend.page_view(spec).shape)
    pages = torch.zeros(shape, dtype=getattr(torch, kv_dtype))
    if kv_dtype != "int8":
        pages.normal_()
    query = torch.randn(batch.num_tokens, layer.num_heads, layer.head_size, dtype=torch.bfloat16)
    key = torch.randn(batch.num_tokens, layer.num_kv_heads, layer.head_size, dtype=torch.bfloat16)
    kernels = backend.implementation(layer, dtype=torch.bfloat16, batch_invariant=False)
    builder = backend.builder([layer], BLOCK_SIZE, case.num_requests)

    def run() -> None:
        metadata = builder.build(batch)
        for one in pages:
            kernels.write_cache(key, key, one, batch.slot_mapping)
            kernels.forward(query, one, metadata)

    return run


def medians(runs: Sequence[Callable[[], None]], rounds: int) -> list[float]:
    times: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    for _ in range(rounds):
        for run, taken in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contexts", type=int, nargs="*", default=[128, 512, 2048, 8192])
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--prompts", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--shared", type=int, nargs="*", default=[], help="contexts of 16 requests, all but 16 shared")
    parser.add_argument("--shape", type=int, nargs=3, default=[9, 3, 64], help="query heads, KV heads, head size")
    parser.add_argument("--window", type=int, default=None)
    parser.add_argument("--kv-dtype", default="bfloat16", choices=["bfloat16", "int8"])
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    layer = layer_of(args)
    cases = [Case(f"decode {n} at {c}", n, 1, c) for n in args.batches for c in args.contexts]
    cases += [Case(f"16 sharing {c - 16} of {c}", 16, 1, c, c - 16) for c in args.shared]
    cases += [Case(f"prompt of {p}", 1, p, p) for p in args.prompts]
    print(f"{torch.get_num_threads()} threads, {args.layers} layers, heads {args.shape}, {args.kv_dtype}")
    print(
        f"{'a layer, in microseconds':<28}" + "".join(f"{backend.name:>14}" for backend in BACKENDS) + f"{'ratio':>8}"
    )
    for case in cases:
        layers = max(1, min(args.layers, 65536 * args.layers // (case.num_requests * case.context)))
        runs = [step(backend, case, layer, layers, args.kv_dtype) for backend in BACKENDS]
        ours, other = (taken / layers * 1e6 for taken in medians(runs, args.rounds))
        print(f"{case.name:<28}{ours:>14.1f}{other:>14.1f}{other / ours:>8.1f}", flush=True)


if __name__ == "__main__":
    main()
