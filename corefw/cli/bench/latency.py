"""``corefw bench latency``: one batch from its prompts to its last tokens, again and again."""

from __future__ import annotations

import argparse
import statistics
import time

from corefw.cli.bench.offline import add_engine_flags, fixed_params, open_llm, random_ids, show
from corefw.cli.bench.summary import percentile
from corefw.errors import ConfigError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``corefw bench latency``."""
    parser.add_argument("--batch-size", type=int, default=8, help="default: 8")
    parser.add_argument("--input-len", type=int, default=32, help="tokens of a prompt (default: 32)")
    parser.add_argument("--output-len", type=int, default=128, help="tokens of an output (default: 128)")
    parser.add_argument("--num-iters-warmup", type=int, default=2, help="rounds before, not measured (default: 2)")
    parser.add_argument("--num-iters", type=int, default=10, help="rounds (default: 10)")
    add_engine_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    if options.num_iters < 1:
        raise ConfigError(f"--num-iters must be at least 1, got {options.num_iters}")
    with open_llm(options) as llm:
        latencies = []
        for round_ in range(options.num_iters_warmup + options.num_iters):
            # New prompts each round: a cached one would be measured without its prefill.
            prompts = random_ids(llm, options.batch_size, options.input_len, seed=round_)
            start_s = time.perf_counter()
            llm.generate(prompts, fixed_params(options.output_len), use_tqdm=False)
            latencies.append(time.perf_counter() - start_s)
        measured = latencies[options.num_iters_warmup :]
        show(
            options,
            {
                "avg_latency": statistics.fmean(measured),
                "latencies": [round(value, 6) for value in measured],
                **{f"p{percent}": percentile(measured, percent) for percent in (10, 25, 50, 75, 90, 99)},
                "output_tokens_per_second": options.batch_size * options.output_len / statistics.median(measured),
            },
        )
    return 0
