from __future__ import annotations

import dataclasses

import pytest

from corefw.builtins.executors.uni import UniExecutor
from corefw.config.engine_config import EngineConfig
from corefw.engine.kv_cache.sizing import plan_runtime
from corefw.engine.llm_engine import LLMEngine
from corefw.errors import ConfigError, EngineError
from corefw.messages.outputs import FinishReason
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from corefw.plugin_system.manager import PluginManager
from tests.runtime.engines import tiny_config
from tests.runtime.steps import HandScheduler, Sequence

_EOS = (258,)


@pytest.fixture(scope="module")
def plugins() -> PluginManager:
    return PluginManager.discover("")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, plugins: PluginManager) -> EngineConfig:
    return tiny_config(tmp_path_factory.mktemp("models"), plugins)


@pytest.fixture
def executor(config: EngineConfig, plugins: PluginManager) -> UniExecutor:
    executor = UniExecutor(config, plugins)
    plan, _ = plan_runtime(config, executor.reports(), plugins)
    executor.initialize(plan)
    return executor


def _request(name: str, prompt_ids: list[int], **params: object) -> EngineCoreRequest:
    values = {"temperature": 0.0, "seed": 1, "max_tokens": 40, "ignore_eos": True, **params}
    return EngineCoreRequest(request_id=name, prompt_ids=prompt_ids, params=SamplingParams(**values), eos_ids=_EOS)


def _generate(engine: LLMEngine, requests: list[EngineCoreRequest]) -> dict[str, list[int]]:
    for request in requests:
        engine.add_request(request)
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    while engine.has_work():
        for output in engine.step():
            tokens[output.request_id] += output.new_token_ids
            assert output.finish_reason in (None, FinishReason.LENGTH), output.error
    return tokens


def test_futures_are_done_when_the_call_returns(executor: UniExecutor) -> None:
    scheduler = HandScheduler(block_size=16)
    scheduler.add(Sequence("one", [1, 2, 3]))
    forward = executor.execute_model(scheduler.schedule())
    assert forward.done()
    assert forward.result() is None
    sampled = executor.sample_tokens()
    assert sampled.done()
    assert [len(tokens) for tokens in sampled.result().sampled_token_ids] == [1]


def test_a_failure_is_carried_by_the_future_and_the_next_step_works(executor: UniExecutor) -> None:
    scheduler = HandScheduler(block_size=16)
    one = scheduler.add(Sequence("one", [1, 2, 3]))
    future = executor.sample_tokens()
    assert isinstance(future.exception(), EngineError)
    executor.execute_model(scheduler.schedule()).result()
    scheduler.update(executor.sample_tokens().result())
    assert len(one.output_ids) == 1


def test_calls_by_name_answer_once_a_rank(executor: UniExecutor) -> None:
    assert executor.collective_rpc("batch_request_ids") == [[]]


def test_after_shutdown_steps_fail_and_shutting_down_again_does_nothing(executor: UniExecutor) -> None:
    executor.shutdown()
    executor.shutdown()
    assert isinstance(executor.sample_tokens().exception(), EngineError)
    with pytest.raises(EngineError, match="shut down"):
        executor.collective_rpc("memory_bytes")


def test_more_than_one_rank_is_refused(config: EngineConfig, plugins: PluginManager) -> None:
    parallel = dataclasses.replace(config.parallel, tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="runs one rank, but the parallel sizes make 2"):
        UniExecutor(dataclasses.replace(config, parallel=parallel), plugins)


def test_an_engine_short_of_blocks_preempts_and_gives_the_same_tokens_as_one_with_plenty(
    config: EngineConfig, plugins: PluginManager
) -> None:
    requests = [
        _request(f"r{index}", [index + 1] * (3 + 5 * index), temperature=index % 3 / 2, seed=index, top_p=0.95)
        for index in range(6)
    ]
    plenty = LLMEngine(config, plugins)
    expected = {}
    for request in requests:
        expected |= _generate(plenty, [request])
    plenty.shutdown()
    cache = dataclasses.replace(config.cache, num_gpu_blocks_override=10, enable_prefix_caching=False)
    model = dataclasses.replace(config.model, max_model_len=120)
    short = LLMEngine(dataclasses.replace(config, cache=cache, model=model), plugins, encode_messages=True)
    assert _generate(short, requests) == expected
    assert short.stats is not None
    assert short.stats.num_preemptions > 0
    short.shutdown()


def test_a_request_that_died_elsewhere_goes_on_at_the_next_token(config: EngineConfig, plugins: PluginManager) -> None:
    engine = LLMEngine(config, plugins)
    whole = _generate(engine, [_request("whole", [4, 5, 6], temperature=1.5, seed=9)])["whole"]
    resumed = EngineCoreRequest(
        request_id="resumed",
        prompt_ids=[4, 5, 6],
        params=_request("", [1], temperature=1.5, seed=9).params,
        prior_output_ids=whole[:17],
        eos_ids=_EOS,
    )
    assert _generate(engine, [resumed])["resumed"] == whole[17:]
    engine.shutdown()


def test_tokens_of_a_cached_prefix_are_those_of_a_cold_one(config: EngineConfig, plugins: PluginManager) -> None:
    engine = LLMEngine(config, plugins)
    prompt_ids = [7 * k % 250 for k in range(70)]
    cold = _generate(engine, [_request("cold", prompt_ids)])["cold"]
    warm = _generate(engine, [_request("warm", prompt_ids)])["warm"]
    assert engine.stats is not None
    assert engine.stats.prefix_hits_tokens >= 64
    assert warm == cold
    engine.shutdown()
