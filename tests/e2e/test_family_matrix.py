"""Every family through the whole engine: transformers' greedy tokens, whatever else an engine does and how it is set.

Tiny random models in float32. Each cell opens the engine in another way, or keeps it busy with other things, and
expects the tokens that transformers gives to each prompt alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from corefw.engine.llm_engine import LLMEngine
from corefw.messages.outputs import FinishReason
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from corefw.testing.tiny_models import write_tiny
from tests.e2e.driver import Result, open_engine, request, run, stats
from tests.e2e.reference import greedy
from tests.models.threads import one_thread  # noqa: F401

NUM_TOKENS = 24
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, seed=0, ignore_eos=True)
LENGTHS = (1, 7, 16, 17, 32, 45, 63, 80)
BLOCK_SIZE = 8
# Where a family has windows at all, they are 21 tokens, which every request but the shortest passes.
_WINDOW = 21
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": _WINDOW},
    "qwen2": {
        "use_sliding_window": True, "sliding_window": _WINDOW, "max_window_layers": 1, "tie_word_embeddings": False,
    },
    "qwen3": {},
    "gemma2": {"sliding_window": _WINDOW, "tie_word_embeddings": False},
    "gemma3_text": {"sliding_window": _WINDOW, "tie_word_embeddings": False},
    "phi3": {"sliding_window": _WINDOW},
}  # fmt: skip
# Some layers see everything and others a window: groups of blocks with equally many layers each.
NUM_GROUPS = {"qwen2": 3, "gemma2": 3, "gemma3_text": 2}


def _prompts() -> list[list[int]]:
    """Of a few pieces as long as a block: the same block comes behind different beginnings, and beginnings again."""
    draw = random.Random(5)
    pieces = [[draw.randrange(256) for _ in range(BLOCK_SIZE)] for _ in range(3)]
    prompts = []
    for length in LENGTHS:
        row = [token for _ in range(max(LENGTHS) // BLOCK_SIZE) for token in draw.choice(pieces)]
        prompts.append([*row[: length - 1], draw.randrange(256)])
    return prompts


PROMPTS = _prompts()


@dataclass(frozen=True)
class Family:
    """A model's directory, and transformers' tokens for each prompt."""

    name: str
    path: str
    expected: list[list[int]]

    def open(self, **settings: object) -> AbstractContextManager[LLMEngine]:
        """An engine that is quick to start, but for ``settings``."""
        small = {"max_model_len": 128, "max_num_batched_tokens": 64, "kv_cache_memory": 2**23, "block_size": BLOCK_SIZE}
        return open_engine(self.path, **{**small, **settings})

    def check(self, results: dict[str, Result], count: int) -> None:
        """The requests of ``batch(count)`` gave what transformers gives."""
        for index in range(count):
            assert results[str(index)].token_ids == self.expected[index % len(PROMPTS)], f"{self.name}, request {index}"


# One without windows and one with two groups of blocks go through every cell quickly; each of the others through one.
_QUICK = ("llama", "gemma3_text")


@pytest.fixture(
    scope="module", params=[name if name in _QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    path = write_tiny(tmp_path_factory.mktemp(request.param), request.param, **FAMILIES[request.param])
    return Family(request.param, str(path), _reference(path))


def _reference(path: Path) -> list[list[int]]:
    """Each prompt alone: padding could turn a close choice."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    expected = [greedy(model, [prompt], NUM_TOKENS)[0] for prompt in PROMPTS]
    assert min(len(set(ids)) for ids in expected) > 4, "a model that repeats itself hides what it reads"
    return expected


def batch(count: int, priority: Callable[[int], int] = lambda _: 0) -> list[EngineCoreRequest]:
    """So many requests; the prompts come again and again."""
    return [request(f"{i}", PROMPTS[i % len(PROMPTS)], GREEDY, priority=priority(i)) for i in range(count)]


CELLS: dict[str, dict[str, object]] = {
    "whole prompts in blocks of 16": {"max_num_batched_tokens": 1024, "block_size": 16},
    "no chunks, in blocks of 32": {"enable_chunked_prefill": False, "max_num_batched_tokens": 128, "block_size": 32},
    "chunks of 16": {"max_num_batched_tokens": 16, "max_num_seqs": 8},
    "no prefix cache": {"enable_prefix_caching": False},
    "a threshold for long prompts": {"long_prefill_token_threshold": 9},
    "an adaptive threshold, few slots": {
        "long_prefill_token_threshold": 5, "adaptive_long_prefill_threshold": True,
        "max_num_seqs": 5, "max_num_active_seqs": 3,
    },
}  # fmt: skip


@pytest.mark.parametrize("cell", CELLS)
def test_tokens_are_those_of_transformers_with(family: Family, cell: str) -> None:
    with family.open(**CELLS[cell]) as engine:
        family.check(run(engine, batch(len(PROMPTS))), len(PROMPTS))
        _assert_free(engine)


def _assert_free(engine: LLMEngine) -> None:
    assert (stats(engine).num_running, stats(engine).num_waiting, stats(engine).kv_usage) == (0, 0, 0.0)


@pytest.mark.parametrize("family", FAMILIES, indirect=True)
def test_tokens_depend_neither_on_the_batch_nor_on_what_the_cache_holds(family: Family) -> None:
    with family.open() as engine:
        cold = [run(engine, [item])[item.request_id] for item in batch(len(PROMPTS))]
        assert cold[0].num_cached_tokens == 0
        family.check({str(index): result for index, result in enumerate(cold)}, len(PROMPTS))
        _check_hits(engine, family, 7)
        assert engine.core.call("reset_prefix_cache")
        family.check(run(engine, batch(32)), 32)
        _assert_free(engine)


def _check_hits(engine: LLMEngine, family: Family, count: int) -> None:
    """Requests that the cache knows give the same, and find most of what they ask for."""
    before = stats(engine)
    family.check(run(engine, batch(count)), count)
    after = stats(engine)
    looked_up = after.prefix_queries_tokens - before.prefix_queries_tokens
    assert after.prefix_hits_tokens - before.prefix_hits_tokens > 0.7 * looked_up


def test_tokens_do_not_depend_on_the_hash(family: Family) -> None:
    with family.open(prefix_caching_hash_algo="xxhash") as engine:
        family.check(run(engine, batch(len(PROMPTS))), len(PROMPTS))
        _check_hits(engine, family, len(PROMPTS))


def _tight(family: Family, **settings: object) -> AbstractContextManager[LLMEngine]:
    """A cache in which the longest request just finds room: 13 blocks of 8 tokens, and those of its windows."""
    groups = NUM_GROUPS.get(family.name, 1) if settings.get("hybrid_kv_cache", True) else 1
    small = {"num_gpu_blocks_override": 9 + 8 * groups, "max_model_len": 104, "max_num_batched_tokens": 32}
    return family.open(**{**small, **settings})


@pytest.mark.parametrize("caching", [True, False])
def test_tokens_survive_preemption(family: Family, caching: bool) -> None:
    with _tight(family, enable_prefix_caching=caching) as engine:
        assert len(engine.core.call("plan")["layer_groups"]) == NUM_GROUPS.get(family.name, 1)
        family.check(run(engine, batch(len(PROMPTS))), len(PROMPTS))
        assert stats(engine).num_preemptions > 0
        _assert_free(engine)


@pytest.mark.parametrize("settings", [{"full_sequence_must_fit": False}, {"watermark": 0.2}], ids=str)
def test_tokens_do_not_depend_on_who_is_admitted_when(family: Family, settings: dict[str, object]) -> None:
    with _tight(family, **settings) as engine:
        family.check(run(engine, batch(len(PROMPTS))), len(PROMPTS))
        _assert_free(engine)


def test_tokens_do_not_depend_on_priorities(family: Family) -> None:
    with _tight(family, scheduling_policy="priority") as engine:
        results = run(engine, batch(len(PROMPTS), lambda index: (5 * index) % 4 - 1))
        family.check(results, len(PROMPTS))
        assert stats(engine).num_preemptions > 0
        _assert_free(engine)


def test_a_late_urgent_request_overtakes_and_changes_no_token(family: Family) -> None:
    with _tight(family, scheduling_policy="priority") as engine:
        late = batch(len(PROMPTS))[3]
        crowd = [item for item in batch(len(PROMPTS), lambda _: 5) if item.request_id != late.request_id]
        order = _run_with(engine, crowd, lambda step: engine.add_request(late) if step == 12 else None)
        family.check(order, len(PROMPTS))
        assert list(order).index(late.request_id) < len(crowd) - 2
        _assert_free(engine)


def _run_with(
    engine: LLMEngine, requests: list[EngineCoreRequest], between: Callable[[int], object]
) -> dict[str, Result]:
    """Results in the order in which requests ended; ``between`` is called before each step."""
    open_, ended = {}, {}
    for item in requests:
        engine.add_request(item)
    step = 0
    while engine.has_work():
        between(step)
        for output in engine.step():
            result = open_.setdefault(output.request_id, Result())
            result.token_ids += output.new_token_ids
            if output.finish_reason is not None:
                result.finish_reason = output.finish_reason
                ended[output.request_id] = open_.pop(output.request_id)
        step += 1
    assert not open_
    return ended


def test_neighbours_that_leave_at_random_steps_change_nothing(family: Family) -> None:
    draw = random.Random(1)
    neighbours = [request(f"n{i}", PROMPTS[(3 * i) % len(PROMPTS)][: 1 + 5 * i], GREEDY) for i in range(16)]
    leaves = {item.request_id: draw.randrange(60) for item in neighbours}
    requests = [*batch(len(PROMPTS)), *neighbours]
    draw.shuffle(requests)
    with _tight(family) as engine:
        results = _run_with(engine, requests, lambda step: engine.abort([n for n, at in leaves.items() if at == step]))
        family.check(results, len(PROMPTS))
        assert any(results[name].finish_reason is FinishReason.ABORT for name in leaves)
        _assert_free(engine)


def test_windows_mean_the_same_without_the_hybrid_cache(family: Family) -> None:
    with _tight(family, hybrid_kv_cache=False) as engine:
        family.check(run(engine, batch(len(PROMPTS))), len(PROMPTS))
        assert len(engine.core.call("plan")["layer_groups"]) == 1
        assert stats(engine).num_preemptions > 0
        _assert_free(engine)
