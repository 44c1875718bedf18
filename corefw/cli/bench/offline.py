"""What the benchmarks of the engine in this process share: its flags, its prompts, and how results are shown."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corefw.cli.client.connect import ENGINE_SECTIONS
from corefw.cli.config_file import add_config_flag
from corefw.cli.plugin_flags import add_plugin_flag
from corefw.config.args import UserArgs, add_flags
from corefw.observability.logging import configure_logging

if TYPE_CHECKING:
    from corefw.llm import LLM

__all__ = ["add_engine_flags", "fixed_params", "open_llm", "random_ids", "show"]


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of the engine, of the log and of the result."""
    parser.add_argument("--model", dest="model.model", default=argparse.SUPPRESS, help="default: the demo model")
    parser.add_argument("--output-json", metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--log-level", default="WARNING", help="of the engine (default: WARNING)")
    add_config_flag(parser)
    add_plugin_flag(parser)
    add_flags(parser, ENGINE_SECTIONS)


def open_llm(options: argparse.Namespace, *, enable_multiprocessing: bool | None = None) -> LLM:
    """The model that the flags name."""
    configure_logging(options.log_level, "bench")
    from corefw.llm import LLM  # brings torch

    settings = UserArgs.from_namespace(options).keywords()
    return LLM(enable_multiprocessing=enable_multiprocessing, **settings)


def random_ids(llm: LLM, num_prompts: int, num_tokens: int, seed: int = 0) -> list[list[int]]:
    """Prompts of random ids that share nothing."""
    rng = random.Random(seed)
    return [rng.choices(range(llm.config.model_info.vocab_size // 2), k=num_tokens) for _ in range(num_prompts)]


def fixed_params(num_tokens: int, n: int = 1) -> Any:
    """Exactly so many tokens of output."""
    from corefw.messages.sampling import SamplingParams

    return SamplingParams(n=n, temperature=0.0, max_tokens=num_tokens, ignore_eos=True)


def show(options: argparse.Namespace, result: Mapping[str, Any]) -> None:
    """Print the figures, and write them where ``--output-json`` says."""
    width = max(map(len, result))
    for name, value in result.items():
        print(f"{name:<{width}}  {value:.4g}" if isinstance(value, float) else f"{name:<{width}}  {value}")
    if options.output_json:
        Path(options.output_json).write_text(json.dumps(result, indent=1), encoding="utf-8")
