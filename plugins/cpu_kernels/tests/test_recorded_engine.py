"""Engines in bfloat16 whose decodes are replayed give the tokens of those that compute every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corefw.llm import LLM
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from corefw.testing.offline_runs import open_tiny
from corefw.testing.registration import installed_as
from corefw.testing.tiny_models import write_tiny, write_tiny_llama
from corefw_cpu_kernels.attention import CpuKernelsAttention
from corefw_cpu_kernels.provider import CpuKernels

_SETTINGS = {"dtype": "bfloat16", "plugins": "cpu_kernels", "max_num_seqs": 4, "max_num_batched_tokens": 48}


def _outputs(llm: LLM) -> dict[str, list[int]]:
    """Requests that come, go and are aborted while others run: batches grow, shrink and mix prompts with decodes."""
    engine, found = llm.engine, dict[str, list[int]]()
    lengths = {0: 40, 3: 70, 5: 9, 9: 60, 14: 5, 15: 90}
    for step in range(200):
        if step in lengths:
            ids = [(7 * step + 13 * i) % 250 for i in range(lengths[step])]
            params = SamplingParams(temperature=0.0, max_tokens=8 + step % 7, ignore_eos=True, seed=0)
            engine.add_request(EngineCoreRequest(request_id=f"{step}", prompt_ids=ids, params=params))
        if step == 11:
            engine.abort(["9"])
        for output in engine.step():
            found.setdefault(output.request_id, []).extend(output.new_token_ids)
        if step > max(lengths) and not engine.has_work():
            return found
    raise AssertionError("requests didn't end")


def _write(folder: Path, family: str) -> None:
    if family == "llama":
        write_tiny_llama(folder, head_dim=16, hidden_size=96)
    else:
        write_tiny(folder, family, head_dim=16)


def _told(llm: LLM) -> dict[str, Any]:
    (answer,) = llm.engine.core._executor.collective_rpc("recorded_steps")
    return answer


@pytest.mark.parametrize(
    ("family", "attention", "num_blocks"),
    [
        ("llama", "cpu_kernels", 14),
        ("gemma3_text", "cpu_kernels", 60),
        pytest.param("llama", "torch", 14, marks=pytest.mark.slow),
    ],
)
def test_replayed_steps_give_the_tokens_of_computed_ones(
    tmp_path: Path, family: str, attention: str, num_blocks: int
) -> None:
    _write(tmp_path, family)
    settings = {**_SETTINGS, "num_gpu_blocks_override": num_blocks, "attention_backend": attention}
    with (
        installed_as("op_providers", "cpu_kernels", CpuKernels),
        installed_as("attention_backends", "cpu_kernels", CpuKernelsAttention),
    ):
        with open_tiny(tmp_path, enforce_eager=True, **settings) as llm:
            expected = _outputs(llm)
            assert _told(llm)["num_replays"] == 0
        with open_tiny(tmp_path, **settings) as llm:
            assert _outputs(llm) == expected
            told = _told(llm)
        with open_tiny(tmp_path, graph_capture_sizes="2,4", **settings) as llm:
            _outputs(llm)
            padded = _told(llm)
    kind = "full" if attention == "cpu_kernels" else "piecewise"
    assert told["num_replays"] > 10
    assert {f"{kind} greedy decode step of {size} tokens" for size in (1, 2, 3)} <= set(told["recorded"])
    greedy = {step for step in padded["recorded"] if "greedy" in step}  # others are warm-up's
    assert {f"{kind} greedy decode step of {size} tokens" for size in (2, 4)} == greedy


@pytest.mark.parametrize(("family", "kv_cache_dtype"), [("llama", "auto"), ("llama", "int8"), ("gemma3_text", "auto")])
def test_what_nobody_has_written_bears_on_no_token(tmp_path: Path, family: str, kv_cache_dtype: str) -> None:
    """New blocks aren't zeroed for these kernels: NaN may lie in them."""
    _write(tmp_path, family)
    settings = {**_SETTINGS, "num_gpu_blocks_override": 60, "kv_cache_dtype": kv_cache_dtype}
    found = []
    with (
        installed_as("op_providers", "cpu_kernels", CpuKernels),
        installed_as("attention_backends", "cpu_kernels", CpuKernelsAttention),
    ):
        for content in (0, 255):
            with open_tiny(tmp_path, **settings) as llm:
                executor: Any = llm.engine.core._executor
                for buffer in executor._running._runner._pages.buffers:
                    buffer[:, 1:] = content
                found.append(_outputs(llm))
    assert found[0] == found[1]
