"""Runs of a tiny model in this process, with and without a plugin: what must agree token for token."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from corefw.llm import LLM
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams

__all__ = ["GREEDY", "PROMPTS", "open_tiny", "run_and_abort", "tiny_llama", "tokens_of", "used_blocks"]

PROMPTS = [[(7 * n + 13 * i) % 250 for i in range(20 + 17 * n)] for n in range(4)]
"""Token ids; of several lengths, the longer ones over several blocks."""

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, seed=0)

_MAX_STEPS = 500
_models: dict[str, tuple[tempfile.TemporaryDirectory[str], Path]] = {}


def tiny_llama() -> Path:
    """A tiny Llama's folder; written once a process."""
    if "llama" not in _models:
        from corefw.testing.tiny_models import write_tiny_llama

        folder = tempfile.TemporaryDirectory(prefix="corefw-tiny-")
        _models["llama"] = folder, write_tiny_llama(Path(folder.name))
    return _models["llama"][1]


@contextmanager
def open_tiny(model: str | Path | None = None, **settings: Any) -> Iterator[LLM]:
    """An engine in this process, in float32, with a small cache; without plugins unless ``plugins`` names some."""
    defaults: dict[str, Any] = {"dtype": "float32", "num_gpu_blocks_override": 60, "plugins": ""}
    with LLM(str(model or tiny_llama()), **(defaults | settings)) as llm:
        yield llm


def tokens_of(llm: LLM, prompts: Sequence[Any] = PROMPTS, params: SamplingParams = GREEDY) -> list[list[int]]:
    """The output tokens of each prompt."""
    return [list(result.outputs[0].token_ids) for result in llm.generate(list(prompts), params)]


def used_blocks(llm: LLM) -> float:
    """The share of KV blocks in use."""
    return float(llm.engine.core.call("stats")["kv_usage"])


def run_and_abort(llm: LLM) -> None:
    """Begin requests, end them from outside after a step each, and compute until nothing is left."""
    engine = llm.engine
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(EngineCoreRequest(request_id=f"aborted-{number}", prompt_ids=prompt, params=GREEDY))
        engine.step()
        engine.abort([f"aborted-{number}"])
    for _ in range(_MAX_STEPS):
        if not engine.has_work():
            return
        engine.step()
    raise AssertionError("aborted requests keep the engine busy")
