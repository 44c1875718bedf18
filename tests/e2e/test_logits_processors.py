"""Logits processors of an installed distribution: states that survive everything, failures that stay alone."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from corefw.config.args import UserArgs
from corefw.engine.llm_engine import LLMEngine
from corefw.engine.resolver import resolve_config
from corefw.errors import PluginError
from corefw.messages.outputs import FinishReason
from corefw.messages.sampling import SamplingParams
from corefw.plugin_system.manager import PluginManager
from corefw.testing.server_process import serving
from corefw.testing.tiny_models import write_tiny_llama
from tests.e2e.driver import Result, request, run, stats
from tests.sample_plugins.install import install_sample

FORCED = 77
NUM_TOKENS = 23


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("site")
    install_sample("logits", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VLLM_PLUGINS", raising=False)
        patch.syspath_prepend(folder)
        yield folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_llama(tmp_path_factory.mktemp("tiny")))


def _engine(model: str, processors: tuple[str, ...], **settings: object) -> LLMEngine:
    plugins = PluginManager.discover()
    keywords = {"model": model, "dtype": "float32", "kv_cache_memory": 2**26, "logits_processors": processors}
    return LLMEngine(resolve_config(UserArgs.from_keywords(**{**keywords, **settings}), plugins), plugins)


@pytest.fixture(scope="module")
def engine(model: str, site: Path) -> Iterator[LLMEngine]:
    running = _engine(model, ("every_fifth", "fails_at", "sharpen"), max_model_len=128)
    yield running
    running.shutdown()


def _params(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "seed": 3, "max_tokens": NUM_TOKENS, "ignore_eos": True, **changes})


FORCING = _params(extra_args={"every_fifth": FORCED})
PROMPTS = {name: [(5 + i * k) % 250 for i in range(30)] for k, name in ((3, "a"), (5, "b"), (7, "c"))}


@pytest.fixture(scope="module")
def alone(engine: LLMEngine) -> dict[str, list[int]]:
    return {name: run(engine, [request(name, ids, FORCING)])[name].token_ids for name, ids in PROMPTS.items()}


def test_every_fifth_token_is_the_forced_one_and_others_follow_from_it(
    engine: LLMEngine, alone: dict[str, list[int]]
) -> None:
    free = run(engine, [request("a", PROMPTS["a"], _params())])["a"].token_ids
    for ids in alone.values():
        assert [i for i in range(NUM_TOKENS) if ids[i] == FORCED and i % 5 == 4] == [4, 9, 14, 19]
    assert alone["a"][:4] == free[:4]
    assert free[4] != FORCED


def test_a_state_survives_chunks_and_preemption(model: str, site: Path, alone: dict[str, list[int]]) -> None:
    # Each needs 4 blocks in the end, and there are 7.
    small = _engine(model, ("every_fifth",), max_model_len=64, num_gpu_blocks_override=8, max_num_batched_tokens=16)
    try:
        results = run(small, [request(name, ids, FORCING) for name, ids in PROMPTS.items()])
        assert stats(small).num_preemptions > 0
    finally:
        small.shutdown()
    assert {name: (result.token_ids, result.error) for name, result in results.items()} == {
        name: (ids, None) for name, ids in alone.items()
    }


@pytest.mark.parametrize("count", [1, 4, 5, 12, NUM_TOKENS - 1])
def test_a_state_is_made_anew_from_prior_outputs(engine: LLMEngine, alone: dict[str, list[int]], count: int) -> None:
    result = run(engine, [request("a", PROMPTS["a"], FORCING, prior=alone["a"][:count])])["a"]
    assert (result.token_ids, result.error) == (alone["a"][count:], None)


def _beside(engine: LLMEngine, fails_at: int) -> Result:
    """A failing request among others, which must not notice it."""
    bad = request("bad", PROMPTS["b"], _params(extra_args={"fails_at": fails_at}, logprobs=2))
    others = [request(name, PROMPTS[name], FORCING) for name in ("a", "c")]
    expected = run(engine, others)
    results = run(engine, [others[0], bad, others[1]])
    for name in ("a", "c"):
        assert results[name].token_ids == expected[name].token_ids
        assert results[name].finish_reason is FinishReason.LENGTH
    return results["bad"]


@pytest.mark.parametrize("position", [0, 6])
def test_a_processor_that_raises_ends_its_request_alone(engine: LLMEngine, position: int) -> None:
    result = _beside(engine, position)
    assert result.finish_reason is FinishReason.ERROR
    assert len(result.token_ids) == position
    assert result.error == f"logits processor fails_at failed: ValueError: told to fail at token {position}"


def test_a_processor_that_cant_take_a_request_in_ends_it(engine: LLMEngine) -> None:
    result = _beside(engine, -1)
    assert (result.token_ids, result.finish_reason) == ([], FinishReason.ERROR)
    assert result.error == "logits processor fails_at failed: ValueError: told to fail on entering"


def test_a_processor_that_keeps_the_most_likely_token_changes_how_often_it_is_taken(engine: LLMEngine) -> None:
    greedy = run(engine, [request("a", PROMPTS["a"], _params())])["a"].token_ids
    warm = {"temperature": 3.0}
    plain = run(engine, [request("a", PROMPTS["a"], _params(**warm))])["a"].token_ids
    sharp = run(engine, [request("a", PROMPTS["a"], _params(**warm, extra_args={"sharpen": 1e6}))])["a"].token_ids
    assert sharp == greedy
    assert plain != greedy


def test_a_processor_that_isnt_there_stops_the_start(model: str, site: Path) -> None:
    with pytest.raises(PluginError, match=r"'every_fith' asked for by --logits-processors.*did you mean every_fifth"):
        _engine(model, ("every_fith",))


def test_a_stream_that_fails_says_so_and_others_finish(model: str, site: Path) -> None:
    flags = ("--dtype", "float32", "--logits-processors", "every_fifth", "--logits-processors", "fails_at")
    with serving(model, *flags, env={"PYTHONPATH": str(site)}) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)

        def stream(extra_args: dict[str, int]) -> tuple[int, list[str | None], str | None]:
            """Chunks with text, finish reasons, and what was raised."""
            extra = {"vllm_xargs": extra_args, "ignore_eos": True, "return_token_ids": True}
            chunks = client.completions.create(
                model=client.models.list().data[0].id, prompt="Once", max_tokens=30, stream=True, extra_body=extra
            )
            num_chunks, reasons = 0, []
            try:
                for chunk in chunks:
                    num_chunks += 1
                    reasons.append(chunk.choices[0].finish_reason)
            except openai.APIError as error:
                return num_chunks, reasons, error.message
            return num_chunks, reasons, None

        with concurrent.futures.ThreadPoolExecutor() as pool:
            wanted = [{"every_fifth": FORCED}, {"fails_at": 7}, {"every_fifth": FORCED}]
            first, bad, last = pool.map(stream, wanted)
        assert bad[0] == 7
        assert set(bad[1]) == {None}
        assert bad[2] is not None
        assert "told to fail at token 7" in bad[2]
        for num_chunks, reasons, error in (first, last):
            assert (num_chunks, reasons[-1], error) == (30, "length", None)
        server.wait_idle()
