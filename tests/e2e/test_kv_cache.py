"""The KV cache's settings in the real engine: layers with a window, how keys and values are stored, what is hashed."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest

from corefw.engine.llm_engine import LLMEngine
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from corefw.testing.tiny_models import write_tiny
from tests.e2e.driver import Result, open_engine, request, run, stats, tokens

NUM_TOKENS = 30
PARAMS = SamplingParams(temperature=1.0, max_tokens=NUM_TOKENS, seed=3, ignore_eos=True, logprobs=1)
PROMPTS = [[3 + (7 * index + 5 * position) % 200 for position in range(11 + 9 * index)] for index in range(4)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Layers with a window of 16 tokens and without one."""
    return str(
        write_tiny(tmp_path_factory.mktemp("windows"), "gemma3_text", sliding_window=16, tie_word_embeddings=False)
    )


def small_engine(model: str, **settings: object) -> AbstractContextManager[LLMEngine]:
    """Quick to start: small steps and a small cache."""
    return open_engine(
        model, **{"max_model_len": 128, "max_num_batched_tokens": 32, "kv_cache_memory": 2**22, **settings}
    )


def requests(name: str = "") -> list[EngineCoreRequest]:
    return [request(f"{name}{index}", prompt, PARAMS) for index, prompt in enumerate(PROMPTS)]


@pytest.fixture(scope="module")
def alone(model: str) -> list[Result]:
    """What each prompt gives alone where every layer keeps every token."""
    with small_engine(model, hybrid_kv_cache=False, enable_prefix_caching=False) as engine:
        return [run(engine, [item])[item.request_id] for item in requests()]


def check(engine: LLMEngine, alone: list[Result], name: str = "") -> None:
    results = run(engine, requests(name))
    for index, expected in enumerate(alone):
        result = results[f"{name}{index}"]
        assert (result.token_ids, result.logprobs) == (expected.token_ids, expected.logprobs)
        assert len(set(expected.token_ids)) > 5, "a model that repeats itself hides what it reads"
    assert stats(engine).kv_usage == 0.0


def num_groups(engine: LLMEngine) -> int:
    return len(engine.core.call("plan")["layer_groups"])


@pytest.mark.parametrize("settings", [{"max_num_batched_tokens": 7}, {"block_size": 8, "max_num_batched_tokens": 128}])
def test_giving_back_what_a_window_no_longer_sees_changes_no_token(
    model: str, alone: list[Result], settings: dict[str, int]
) -> None:
    with small_engine(model, **settings) as engine:
        assert num_groups(engine) > 1
        check(engine, alone)
        check(engine, alone, "warm")


def test_without_the_hybrid_cache_there_is_one_group_and_the_same_tokens(model: str, alone: list[Result]) -> None:
    with small_engine(model, hybrid_kv_cache=False) as engine:
        assert num_groups(engine) == 1
        check(engine, alone)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_windows_survive_preemption(model: str, alone: list[Result], policy: str) -> None:
    settings = {"max_model_len": 80, "max_num_batched_tokens": 16, "block_size": 8, "scheduling_policy": policy}
    with small_engine(model, num_gpu_blocks_override=17, **settings) as engine:
        check(engine, alone)
        assert stats(engine).num_preemptions > 0


def test_a_long_request_holds_a_window_and_not_its_whole_length(model: str) -> None:
    long = SamplingParams(temperature=0.0, max_tokens=80, seed=0, ignore_eos=True)
    usage = {}
    for hybrid in (True, False):
        settings = {"max_model_len": 100, "block_size": 8, "max_num_batched_tokens": 16}
        with small_engine(model, hybrid_kv_cache=hybrid, **settings) as engine:
            bytes_per_block = engine.core.call("plan")["kv_cache_bytes"] / engine.core.call("plan")["num_blocks"]
            engine.add_request(request("long", PROMPTS[0], long))
            for _ in range(70):
                engine.step()
            num_used = stats(engine).kv_usage * (engine.core.call("plan")["num_blocks"] - 1)
            usage[hybrid] = num_used * bytes_per_block
    assert usage[True] < 0.7 * usage[False]


def test_tokens_and_hits_do_not_depend_on_the_hash(model: str, alone: list[Result]) -> None:
    with small_engine(model, prefix_caching_hash_algo="xxhash") as engine:
        check(engine, alone)
        again = run(engine, [request("again", PROMPTS[3], PARAMS)])["again"]
        assert (again.token_ids, again.num_cached_tokens) == (alone[3].token_ids, 32)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_tokens_do_not_depend_on_the_batch_however_keys_and_values_are_stored(model: str, dtype: str) -> None:
    with small_engine(model, kv_cache_dtype=dtype, max_num_batched_tokens=16) as engine:
        alone = [run(engine, [item])[item.request_id] for item in requests()]
        check(engine, alone, "batch")


def test_a_stored_dtype_takes_the_memory_that_its_name_promises(model: str) -> None:
    sizes = {}
    for dtype in ("float32", "bfloat16", "int8"):
        with small_engine(model, max_model_len=64, num_gpu_blocks_override=50, kv_cache_dtype=dtype) as engine:
            sizes[dtype] = engine.core.call("plan")["kv_cache_bytes"]
    assert sizes["float32"] == 2 * sizes["bfloat16"]
    assert sizes["int8"] < sizes["bfloat16"]


def test_half_precision_arithmetic_can_store_keys_and_values_in_another_dtype(model: str) -> None:
    for dtype in ("float32", "int8"):
        with small_engine(model, dtype="bfloat16", kv_cache_dtype=dtype) as engine:
            assert all(len(ids) == NUM_TOKENS for ids in tokens(engine, requests()).values())
