"""Sampling parameters through the whole engine: the same in chunks, under preemption and after a resumption."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from corefw.engine.llm_engine import LLMEngine
from corefw.errors import RequestError
from corefw.messages.outputs import EngineCoreOutput, FinishReason, PromptLogprobs
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from corefw.testing.tiny_models import write_tiny_llama
from tests.e2e.driver import open_engine, request, run, stats

NUM_TOKENS = 24
PROMPT = [*range(40, 70), 41, 42]
COMMON: dict[str, Any] = {"max_tokens": NUM_TOKENS, "ignore_eos": True, "seed": 5}
KINDS: dict[str, SamplingParams] = {
    "penalties": SamplingParams(
        temperature=0.0, repetition_penalty=1.4, presence_penalty=0.6, frequency_penalty=0.9, **COMMON
    ),
    "seeded": SamplingParams(temperature=1.2, repetition_penalty=1.2, frequency_penalty=-0.4, top_p=0.9, **COMMON),
    "bias": SamplingParams(temperature=0.0, logit_bias={65: 4.0, 67: -100.0}, **COMMON),
    "allowed": SamplingParams(temperature=0.7, allowed_token_ids=tuple(range(60, 90)), **COMMON),
    "bad words": SamplingParams(temperature=0.0, bad_words_token_ids=((1,),), **COMMON),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_llama(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def engine(model: str) -> Iterator[LLMEngine]:
    with open_engine(model, max_model_len=256, encode_messages=True) as running:
        yield running


@pytest.fixture(scope="module")
def alone(engine: LLMEngine) -> dict[str, list[int]]:
    return {name: run(engine, [_one(name)])[name].token_ids for name in KINDS}


def _one(name: str, prior: list[int] | None = None) -> EngineCoreRequest:
    return request(name, PROMPT, KINDS[name], prior=prior or [])


def test_the_tokens_obey_their_parameters(alone: dict[str, list[int]]) -> None:
    assert set(alone["allowed"]) <= set(range(60, 90))
    assert 1 not in alone["bad words"]
    assert 67 not in alone["bias"]
    assert max(np.bincount(alone["penalties"])) <= 3
    assert len({tuple(ids) for ids in alone.values()}) == len(KINDS)


def test_they_mean_the_same_in_chunks_and_under_preemption(model: str, alone: dict[str, list[int]]) -> None:
    # Each needs 4 blocks in the end, and there are 7.
    with open_engine(model, max_model_len=64, num_gpu_blocks_override=8, max_num_batched_tokens=16) as small:
        results = run(small, [_one(name) for name in KINDS])
        assert stats(small).num_preemptions > 0
    assert {name: result.token_ids for name, result in results.items()} == alone


@pytest.mark.parametrize("name", KINDS)
def test_they_mean_the_same_after_a_resumption(engine: LLMEngine, alone: dict[str, list[int]], name: str) -> None:
    for count in (1, 7, NUM_TOKENS - 1):
        rest = run(engine, [_one(name, alone[name][:count])])[name].token_ids
        assert rest == alone[name][count:], f"resumed after {count} tokens"


def test_a_bad_word_of_several_tokens_never_comes(engine: LLMEngine) -> None:
    free = run(engine, [request("free", PROMPT, SamplingParams(temperature=0.0, **COMMON))])["free"].token_ids
    pair = tuple(free[3:5])
    params = SamplingParams(temperature=0.0, bad_words_token_ids=(pair,), **COMMON)
    ids = run(engine, [request("bound", PROMPT, params)])["bound"].token_ids
    assert ids[:4] == free[:4]
    assert pair not in set(pairwise(ids))


# Log-probabilities of prompts.


def _outputs(engine: LLMEngine, *requests: EngineCoreRequest) -> dict[str, list[EngineCoreOutput]]:
    found: dict[str, list[EngineCoreOutput]] = {item.request_id: [] for item in requests}
    for item in requests:
        engine.add_request(item)
    while engine.has_work():
        for output in engine.step():
            found[output.request_id].append(output)
    return found


def _scores(outputs: list[EngineCoreOutput]) -> PromptLogprobs:
    """Told once, with the first news."""
    assert [output.prompt_logprobs is not None for output in outputs] == [True] + [False] * (len(outputs) - 1)
    assert outputs[0].prompt_logprobs is not None
    return outputs[0].prompt_logprobs


def _scored(name: str, prompt: list[int], max_tokens: int = 0, count: int = 2) -> EngineCoreRequest:
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=max_tokens, prompt_logprobs=count, ignore_eos=True)
    return request(name, prompt, params)


def test_prompt_logprobs_are_those_of_an_independent_implementation(model: str, engine: LLMEngine) -> None:
    reference = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    prompt = [int(i) for i in np.random.default_rng(3).integers(0, 250, 90)]
    with torch.inference_mode():
        expected = torch.log_softmax(reference(torch.tensor([prompt])).logits[0], -1)[:-1]
    scores = _scores(_outputs(engine, _scored("a", prompt, count=3))["a"])
    assert scores.token_ids.to_numpy()[:, 0].tolist() == prompt[1:]
    own = expected[torch.arange(89), torch.tensor(prompt[1:])]
    np.testing.assert_allclose(scores.logprobs.to_numpy()[:, 0], own, atol=1e-3)
    np.testing.assert_allclose(scores.logprobs.to_numpy()[:, 1:], expected.topk(3).values, atol=1e-3)
    ranks = (expected > own[:, None]).sum(-1) + 1
    assert scores.ranks.to_numpy().tolist() == ranks.tolist()


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 33, 49])
def test_prompt_logprobs_depend_on_neither_cache_nor_order(engine: LLMEngine, length: int) -> None:
    prompt = [(7 * i) % 250 for i in range(60)]
    assert engine.core.call("reset_prefix_cache")
    cold = _scores(_outputs(engine, _scored("a", prompt[:length]))["a"])
    _outputs(engine, _scored("b", prompt, max_tokens=2))
    warm = _outputs(engine, _scored("c", prompt[:length]))["c"]
    assert _scores(warm) == cold
    assert warm[0].num_cached_tokens == 0


def test_a_request_that_scores_its_prompt_still_fills_the_cache(engine: LLMEngine) -> None:
    prompt = [(11 * i) % 250 for i in range(50)]
    assert engine.core.call("reset_prefix_cache")
    _outputs(engine, _scored("a", prompt))
    plain = SamplingParams(temperature=0.0, seed=0, max_tokens=1, ignore_eos=True)
    assert _outputs(engine, request("b", prompt, plain))["b"][0].num_cached_tokens == 48


def test_prompt_logprobs_are_the_same_bits_in_chunks_and_under_preemption(model: str, engine: LLMEngine) -> None:
    prompts = {name: [(3 + i * k) % 250 for i in range(40)] for k, name in ((3, "a"), (5, "b"), (7, "c"))}
    whole = {name: _outputs(engine, _scored(name, ids, 20))[name] for name, ids in prompts.items()}
    with open_engine(model, max_model_len=64, num_gpu_blocks_override=8, max_num_batched_tokens=16) as small:
        chunked = _outputs(small, *(_scored(name, ids, 20) for name, ids in prompts.items()))
        assert stats(small).num_preemptions > 0
    for name in prompts:
        assert _scores(chunked[name]) == _scores(whole[name])
        ids = [[i for output in outputs[name] for i in output.new_token_ids] for outputs in (chunked, whole)]
        assert ids[0] == ids[1]


def test_no_tokens_asked_for_is_a_prompt_scored_and_an_end(engine: LLMEngine) -> None:
    (output,) = _outputs(engine, _scored("a", [5, 6, 7]))["a"]
    assert (output.new_token_ids, output.finish_reason) == ([], FinishReason.LENGTH)
    assert output.prompt_logprobs is not None
    with pytest.raises(RequestError, match="max_tokens"):
        SamplingParams(max_tokens=0)


def test_a_resumed_request_isnt_told_its_prompt_again(engine: LLMEngine) -> None:
    item = _scored("a", PROMPT, max_tokens=5)
    first = [i for output in _outputs(engine, item)["a"] for i in output.new_token_ids]
    again = _outputs(engine, request("a", PROMPT, item.params, prior=first[:2]))["a"]
    assert all(output.prompt_logprobs is None for output in again)
    assert [i for output in again for i in output.new_token_ids] == first[2:]


def test_all_logprobs_are_the_whole_vocabulary(engine: LLMEngine) -> None:
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=2, logprobs=-1, prompt_logprobs=-1, ignore_eos=True)
    few = SamplingParams(temperature=0.0, seed=0, max_tokens=2, logprobs=1, ignore_eos=True)
    found = _outputs(engine, request("all", PROMPT, params), request("few", PROMPT, few))
    size = engine.config.model_info.vocab_size
    logprobs = found["all"][0].logprobs
    assert logprobs is not None
    assert sorted(logprobs[0].token_ids[1:]) == list(range(size))
    assert sum(np.exp(logprobs[0].logprobs[1:])) == pytest.approx(1.0, abs=1e-4)
    assert _scores(found["all"]).token_ids.shape == (len(PROMPT) - 1, 1 + size)
    assert [len(entry.token_ids) for output in found["few"] for entry in output.logprobs or []] == [2, 2]
