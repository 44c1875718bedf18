"""``corefw bench throughput``: everything submitted at once, tokens per second."""

from __future__ import annotations

import argparse
import time

from corefw.cli.bench.offline import add_engine_flags, fixed_params, open_llm, random_ids, show

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``corefw bench throughput``."""
    parser.add_argument("--num-prompts", type=int, default=32, help="default: 32")
    parser.add_argument("--input-len", type=int, default=128, help="tokens of a prompt (default: 128)")
    parser.add_argument("--output-len", type=int, default=64, help="tokens of an output (default: 64)")
    parser.add_argument("--n", type=int, default=1, help="outputs a prompt (default: 1)")
    add_engine_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    with open_llm(options) as llm:
        llm.generate(random_ids(llm, 2, 16, seed=1), fixed_params(2), use_tqdm=False)
        prompts = random_ids(llm, options.num_prompts, options.input_len)
        start_s = time.perf_counter()
        results = llm.generate(prompts, fixed_params(options.output_len, options.n))
        elapsed_s = time.perf_counter() - start_s
        num_output = sum(len(output.token_ids) for result in results for output in result.outputs)
        num_input = sum(len(result.prompt_token_ids) for result in results)
        show(
            options,
            {
                "model": llm.config.model.model,
                "dtype": llm.config.dtype,
                "elapsed_time": elapsed_s,
                "num_requests": len(results),
                "total_num_tokens": num_input + num_output,
                "requests_per_second": len(results) / elapsed_s,
                "tokens_per_second": (num_input + num_output) / elapsed_s,
                "output_tokens_per_second": num_output / elapsed_s,
            },
        )
    return 0
