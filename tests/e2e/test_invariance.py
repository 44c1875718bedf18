"""Tokens depend on the request alone: not on batch, chunks, cache or a preemption, nor on where it was resumed.

In float32, where equal means equal in every bit. The whole matrix runs on a tiny random model, and on the demo model
with the slow tests; a few cells of the demo model run always.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pytest

from corefw.engine.llm_engine import LLMEngine
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from corefw.testing.tiny_models import write_tiny_llama
from tests.e2e.driver import DEMO_MODEL, Result, open_engine, renderer_of, request, run, stats, tokens
from tests.e2e.prompts import PROMPTS
from tests.models.threads import every_core  # noqa: F401

NUM_TOKENS = 14
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, seed=0, ignore_eos=True)
SEEDED = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=NUM_TOKENS, seed=1234, ignore_eos=True)


@dataclass
class Case:
    """A model, an engine on it, its prompts, and what each gives alone on a cold cache."""

    model: str
    engine: LLMEngine
    prompts: list[list[int]]
    alone: list[list[int]]

    def requests(self, count: int) -> list[EngineCoreRequest]:
        return [request(f"{i}", self.prompts[i % len(self.prompts)], _params(i)) for i in range(count)]

    def expected(self, index: int) -> list[int]:
        return self.alone[index % len(self.prompts)]

    def check(self, results: dict[str, list[int]], count: int) -> None:
        for index in range(count):
            assert results[str(index)] == self.expected(index), PROMPTS[index % len(PROMPTS)]


def _params(index: int) -> SamplingParams:
    return GREEDY if index % 2 == 0 else SEEDED


@pytest.fixture(scope="module", params=["tiny", pytest.param("demo", marks=[pytest.mark.model, pytest.mark.slow])])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    model = DEMO_MODEL
    if request.param == "tiny":
        model = str(write_tiny_llama(tmp_path_factory.mktemp("tiny"), max_position_embeddings=2048))
    with open_engine(model) as engine:
        renderer = renderer_of(engine.config)
        prompts = [renderer.render_text(text, param="prompt") for text in PROMPTS]
        yield Case(model, engine, prompts, [_alone(engine, prompt, i) for i, prompt in enumerate(prompts)])


def _alone(engine: LLMEngine, prompt: list[int], index: int) -> list[int]:
    assert engine.core.call("reset_prefix_cache")
    return tokens(engine, [request("alone", prompt, _params(index))])["alone"]


def test_a_seed_decides_the_tokens(case: Case) -> None:
    other = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=NUM_TOKENS, seed=99, ignore_eos=True)
    again = tokens(
        case.engine, [request(name, case.prompts[1], p) for name, p in (("a", SEEDED), ("b", other), ("c", GREEDY))]
    )
    assert again["a"] == case.expected(1)
    assert len({tuple(ids) for ids in again.values()}) == 3


@pytest.mark.parametrize("batch", [7, 32])
def test_tokens_do_not_depend_on_the_batch(case: Case, batch: int) -> None:
    case.check(tokens(case.engine, case.requests(batch)), batch)


def test_tokens_do_not_depend_on_a_warm_cache(case: Case) -> None:
    long = max(range(0, len(case.prompts), 2), key=lambda i: len(case.prompts[i]))
    prompts = [case.prompts[long], case.prompts[long][:-3]]
    assert case.engine.core.call("reset_prefix_cache")
    cold = run(case.engine, [request(f"{i}", prompt, GREEDY) for i, prompt in enumerate(prompts)])
    warm = run(case.engine, [request(f"{i}", prompt, GREEDY) for i, prompt in enumerate(prompts)])
    for name, result in warm.items():
        assert result.num_cached_tokens
        assert result.token_ids == cold[name].token_ids


@pytest.mark.parametrize("budget", [16, 64])
def test_tokens_do_not_depend_on_the_chunks(case: Case, budget: int) -> None:
    with open_engine(case.model, max_num_batched_tokens=budget, max_num_seqs=8) as engine:
        case.check(tokens(engine, case.requests(16)), 16)


@pytest.mark.parametrize("block_size", [8, 32])
def test_tokens_do_not_depend_on_the_block_size(case: Case, block_size: int) -> None:
    with open_engine(case.model, block_size=block_size) as engine:
        case.check(tokens(engine, case.requests(5)), 5)


@pytest.fixture(scope="module")
def crowd(case: Case) -> list[tuple[EngineCoreRequest, Result]]:
    """Requests with logprobs, greedy and seeded, and what each gives alone."""
    common = {"max_tokens": 36, "ignore_eos": True, "logprobs": 3}
    kinds = (SamplingParams(temperature=0.0, seed=0, **common), SamplingParams(temperature=0.9, seed=7, **common))
    requests = [request(f"{i}", [40 + i, *case.prompts[1][:11]], kinds[i % 2]) for i in range(5)]
    return [(item, run(case.engine, [item])[item.request_id]) for item in requests]


@pytest.mark.parametrize("caching", [True, False])
def test_outputs_survive_preemption(case: Case, crowd: list[tuple[EngineCoreRequest, Result]], caching: bool) -> None:
    # Each needs 3 blocks in the end, and there are 5.
    with open_engine(case.model, num_gpu_blocks_override=6, max_model_len=64, enable_prefix_caching=caching) as small:
        results = run(small, [item for item, _ in crowd])
        assert stats(small).num_preemptions > 0
        assert stats(small).kv_usage == 0.0
    for item, alone in crowd:
        result = results[item.request_id]
        assert result.token_ids == alone.token_ids
        assert result.logprobs == alone.logprobs
        assert len(result.token_ids) == 36


@pytest.mark.parametrize("index", [0, 1], ids=["greedy", "seeded"])
def test_a_request_resumes_at_every_position(case: Case, index: int) -> None:
    whole = case.expected(index)
    batch = [request(f"{k}", case.prompts[index], _params(index), prior=whole[:k]) for k in range(NUM_TOKENS + 1)]
    results = tokens(case.engine, batch)
    for k in range(NUM_TOKENS + 1):
        assert results[str(k)] == whole[k:], f"resumed after {k} tokens"


def test_encoding_every_message_changes_nothing(case: Case) -> None:
    with open_engine(case.model, encode_messages=True) as engine:
        case.check(tokens(engine, case.requests(5)), 5)


@pytest.mark.model
@pytest.mark.slow
def test_the_demo_model_gives_the_same_tokens_alone_and_in_a_crowd_of_small_chunks_and_preemptions() -> None:
    common = {"max_tokens": 20, "ignore_eos": True, "logprobs": 2}
    kinds = (SamplingParams(temperature=0.0, seed=0, **common), SamplingParams(temperature=0.9, seed=7, **common))
    with open_engine() as engine:
        prompts = [renderer_of(engine.config).render_text(text, param="prompt")[:11] for text in PROMPTS[:4]]
        crowd = [request(f"{i}", [40 + i, *prompt], kinds[i % 2]) for i, prompt in enumerate(prompts)]
        alone = {item.request_id: run(engine, [item])[item.request_id] for item in crowd}
    # Each needs 2 blocks in the end, and there are 5; a step computes at most 8 tokens.
    with open_engine(num_gpu_blocks_override=6, max_model_len=64, max_num_batched_tokens=8, max_num_seqs=4) as small:
        results = run(small, crowd)
        assert stats(small).num_preemptions > 0
    resumed = [msgspec.structs.replace(item, prior_output_ids=alone[item.request_id].token_ids[:9]) for item in crowd]
    with open_engine(encode_messages=True) as engine:
        rest = run(engine, resumed)
    for name, expected in alone.items():
        assert results[name].token_ids == expected.token_ids
        assert results[name].logprobs == expected.logprobs
        assert rest[name].token_ids == expected.token_ids[9:]
        assert rest[name].logprobs == expected.logprobs[9:]
