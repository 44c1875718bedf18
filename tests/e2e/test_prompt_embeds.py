"""Prompts as embeddings through the whole engine: the tokens of the text they come from, and those of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from corefw.engine.llm_engine import LLMEngine
from corefw.messages.arrays import Array
from corefw.messages.request import PLACEHOLDER_ID, EmbeddingSpan, EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from corefw.testing.tiny_models import write_tiny
from tests.e2e.driver import Result, open_engine, run, stats, tokens

NUM_TOKENS = 12
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, seed=0, ignore_eos=True)
LENGTHS = (1, 5, 16, 23, 33, 40, 47, 61)
WINDOW = 21
# Gemma scales the embeddings of its tokens; it has windows, too.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "gemma3_text": {"sliding_window": WINDOW, "tie_word_embeddings": False},
}


@dataclass(frozen=True)
class Prompt:
    """Ids and embeddings, as transformers' ``inputs_embeds`` and as the engine gets them."""

    ids: list[int]
    inputs_embeds: torch.Tensor
    spans: tuple[EmbeddingSpan, ...] = ()

    def request(self, name: str, params: SamplingParams = GREEDY) -> EngineCoreRequest:
        return EngineCoreRequest(request_id=name, prompt_ids=self.ids, params=params, prompt_embeds=self.spans)


@dataclass(frozen=True)
class Family:
    """A model's directory, its token embeddings as layers get them, prompts, and transformers' tokens for each."""

    path: str
    model: Any
    prompts: list[Prompt]
    expected: list[list[int]]

    def open(self, **settings: object) -> AbstractContextManager[LLMEngine]:
        small = {"max_model_len": 128, "max_num_batched_tokens": 64, "kv_cache_memory": 2**23, "block_size": 8}
        return open_engine(self.path, encode_messages=True, **{"enable_prompt_embeds": True, **small, **settings})

    def batch(self, times: int = 1) -> list[EngineCoreRequest]:
        return [self.prompts[i % 8].request(str(i)) for i in range(8 * times)]

    def check(self, results: dict[str, Result]) -> None:
        for name, result in results.items():
            assert result.error is None
            assert result.token_ids == self.expected[int(name) % 8], f"request {name}"


def span(offset: int, rows: torch.Tensor) -> EmbeddingSpan:
    return EmbeddingSpan(offset=offset, values=Array.from_numpy(rows.detach().numpy()))


def _prompt(model: Any, kind: int, length: int, random: torch.Generator) -> Prompt:
    """Text alone, embeddings alone, or embeddings at two places of a text."""
    ids = torch.randint(0, 256, (length,), generator=random)
    embeds = model.get_input_embeddings()(ids[None])[0].detach().clone()
    noise = torch.randn(embeds.shape, generator=random) * embeds.std()
    if kind == 0:
        return Prompt(ids.tolist(), embeds)
    if kind == 1:
        return Prompt([PLACEHOLDER_ID] * length, noise, (span(0, noise),))
    first, second = slice(2, length // 2), slice(length // 2 + 1, length - 3)
    for part in (first, second):
        embeds[part], ids[part] = noise[part], PLACEHOLDER_ID
    return Prompt(ids.tolist(), embeds, tuple(span(part.start, noise[part]) for part in (first, second)))


def their_tokens(model: Any, embeds: torch.Tensor, count: int = NUM_TOKENS) -> list[int]:
    return model.generate(  # type: ignore[no-any-return]
        inputs_embeds=embeds[None],
        attention_mask=torch.ones(1, len(embeds), dtype=torch.int64),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        use_cache=True,
        pad_token_id=0,
        eos_token_id=None,
    )[0].tolist()


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    path = write_tiny(tmp_path_factory.mktemp(request.param), request.param, **FAMILIES[request.param])
    return _family(path)


def _family(path: Path) -> Family:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    random = torch.Generator().manual_seed(5)
    kinds = (1, 0, 2, 1, 0, 2, 1, 2)
    prompts = [_prompt(model, kind, n, random) for kind, n in zip(kinds, LENGTHS, strict=True)]
    expected = [their_tokens(model, prompt.inputs_embeds) for prompt in prompts]
    assert all(len(set(ids)) > 3 for ids in expected), "a model that repeats itself hides what it reads"
    return Family(str(path), model, prompts, expected)


CELLS: dict[str, dict[str, object]] = {
    "blocks of 8": {},
    "blocks of 16, chunks of 16": {"block_size": 16, "max_num_batched_tokens": 16},
    "blocks of 8, chunks of 5": {"max_num_batched_tokens": 16, "long_prefill_token_threshold": 5},
    "no prefix cache": {"enable_prefix_caching": False},
}


@pytest.mark.parametrize("cell", CELLS)
def test_embeddings_give_transformers_tokens_beside_text_with(family: Family, cell: str) -> None:
    with family.open(**CELLS[cell]) as engine:
        family.check(run(engine, family.batch()))


def test_embeddings_give_transformers_tokens_alone_and_from_a_warm_cache(family: Family) -> None:
    with family.open() as engine:
        for request in family.batch():
            family.check(run(engine, [request]))
        family.check(run(engine, family.batch(2)))
        assert stats(engine).prefix_hits_tokens > 0


def test_embeddings_survive_preemption(family: Family) -> None:
    with family.open(num_gpu_blocks_override=20, max_model_len=80, max_num_batched_tokens=32) as engine:
        family.check(run(engine, family.batch(2)))
        assert stats(engine).num_preemptions > 0


def test_equal_embeddings_share_the_prefix_cache_and_others_do_not(family: Family) -> None:
    with family.open() as engine:
        longest = family.prompts[6]
        assert run(engine, [longest.request("6")])["6"].num_cached_tokens == 0
        warm = run(engine, [longest.request("6")])
        assert warm["6"].num_cached_tokens == 40
        family.check(warm)
        other = longest.inputs_embeds.clone()
        other[20, 3] += 1.0
        changed = Prompt(longest.ids, other, (span(0, other),))
        result = run(engine, [changed.request("changed")])["changed"]
        assert result.num_cached_tokens == 16
        assert result.token_ids == their_tokens(family.model, other)


def test_placeholders_as_tokens_are_no_embeddings(family: Family) -> None:
    with family.open() as engine:
        embedded = family.prompts[6]
        run(engine, [embedded.request("6")])
        text = Prompt(embedded.ids, family.model.get_input_embeddings()(torch.tensor([embedded.ids]))[0])
        result = run(engine, [text.request("text")])["text"]
        assert result.num_cached_tokens == 0
        assert result.token_ids == their_tokens(family.model, text.inputs_embeds)


def test_a_text_s_own_embeddings_give_its_tokens_and_log_probabilities_bit_for_bit(family: Family) -> None:
    text = family.prompts[4]
    embedded = Prompt([PLACEHOLDER_ID] * len(text.ids), text.inputs_embeds, (span(0, text.inputs_embeds),))
    params = SamplingParams(temperature=0.9, max_tokens=NUM_TOKENS, seed=3, ignore_eos=True, logprobs=3)
    with family.open() as engine:
        results = run(engine, [text.request("text", params), embedded.request("embedded", params)])
    assert results["embedded"].token_ids == results["text"].token_ids
    assert results["embedded"].logprobs == results["text"].logprobs


def test_a_request_with_embeddings_is_resumed_with_its_outputs(family: Family) -> None:
    with family.open(max_num_batched_tokens=16) as engine:
        for prior in (1, 7):
            request = EngineCoreRequest(
                request_id="resumed",
                prompt_ids=family.prompts[7].ids,
                params=GREEDY,
                prior_output_ids=family.expected[7][:prior],
                prompt_embeds=family.prompts[7].spans,
            )
            assert tokens(engine, [request])["resumed"] == family.expected[7][prior:]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Family:
    return _family(write_tiny(tmp_path_factory.mktemp("llama-alone"), "llama"))


def test_penalties_leave_out_placeholders(llama: Family) -> None:
    embedded = llama.prompts[6]
    params = SamplingParams(temperature=0.0, max_tokens=4, seed=0, repetition_penalty=50.0, logit_bias={0: 100.0})
    with llama.open() as engine:
        result = run(engine, [embedded.request("penalised", params)])["penalised"]
    # Id 0 stands in the prompt's ids everywhere, and would be pushed down if that counted.
    assert result.token_ids[0] == PLACEHOLDER_ID


def test_another_request_is_not_touched_by_embeddings_that_overflow(llama: Family) -> None:
    huge = torch.full((20, 48), 3e38)
    bad = Prompt([PLACEHOLDER_ID] * 20, huge, (span(0, huge),))
    with llama.open() as engine:
        results = run(engine, [bad.request("bad"), *llama.batch(), bad.request("bad too")])
        family_results = {name: result for name, result in results.items() if name.isdigit()}
        llama.check(family_results)
        llama.check(run(engine, llama.batch(2)))


@pytest.mark.parametrize("spans", [
    [(0, (4, 47))], [(0, (4,))], [(0, (0, 48))], [(8, (4, 48))], [(-1, (2, 48))], [(0, (4, 48)), (3, (2, 48))],
    [(4, (2, 48)), (0, (2, 48))],
], ids=str)  # fmt: skip
def test_spans_that_do_not_fit_end_their_request_alone(llama: Family, spans: Sequence[tuple[int, Any]]) -> None:
    bad = tuple(
        EmbeddingSpan(offset=offset, values=Array.from_numpy(np.zeros(shape, np.float32))) for offset, shape in spans
    )
    request = EngineCoreRequest(request_id="bad", prompt_ids=[0] * 10, params=GREEDY, prompt_embeds=bad)
    with llama.open() as engine:
        results = run(engine, [request, *llama.batch()])
    assert "embeddings" in (results.pop("bad").error or "")
    llama.check(results)


def test_embeddings_in_bfloat16_give_the_tokens_of_their_text(llama: Family) -> None:
    text = llama.prompts[4]
    table = llama.model.get_input_embeddings().weight.detach().to(torch.bfloat16).float()
    rows = table[torch.tensor(text.ids)]
    embedded = Prompt([PLACEHOLDER_ID] * len(text.ids), rows, (span(0, rows),))
    with llama.open(dtype="bfloat16") as engine:
        alone = [run(engine, [prompt.request("one")])["one"].token_ids for prompt in (text, embedded)]
    assert alone[0] == alone[1]


def test_an_engine_without_the_flag_refuses_embeddings(llama: Family) -> None:
    with llama.open(enable_prompt_embeds=False) as engine:
        results = run(engine, llama.batch())
    assert "--enable-prompt-embeds" in (results["0"].error or "")
    assert results["1"].token_ids == llama.expected[1]
