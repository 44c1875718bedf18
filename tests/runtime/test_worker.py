from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from corefw.builtins.platforms.cpu_runtime import CpuRuntime
from corefw.engine.kv_cache.sizing import plan_runtime
from corefw.engine.resolver import with_tokenizer_size
from corefw.errors import ConfigError, EngineError
from corefw.messages.sampling import SamplingParams
from corefw.plugin_system.manager import PluginManager
from corefw.runtime.worker import Worker
from tests.runtime.engines import tiny_config
from tests.runtime.steps import HandScheduler, Sequence

MIB = 2**20


def _started(worker: Worker, plugins: PluginManager, config) -> HandScheduler:
    plan, _ = plan_runtime(config, [worker.report()], plugins)
    worker.initialize(plan)
    return HandScheduler(plan.num_blocks, plan.block_size)


def _generate(worker: Worker, scheduler: HandScheduler, num_steps: int) -> None:
    for _ in range(num_steps):
        worker.execute_model(scheduler.schedule())
        scheduler.update(worker.sample_tokens())


def test_the_report_names_every_layer_and_the_choices_made(model_dir: Path, plugins: PluginManager) -> None:
    report = Worker(tiny_config(model_dir, plugins), plugins).report()
    assert [spec.block_size for spec in report.kv_cache_specs.values()] == [16] * 3
    assert report.attention_backend == "torch"
    assert ("attention backend", "torch") in [(what, chosen) for what, chosen, _ in report.decisions]


def test_a_device_that_was_made_to_meet_others_is_not_made_again(model_dir: Path, plugins: PluginManager) -> None:
    class Small(CpuRuntime):
        def total_memory_bytes(self) -> int:
            return 12345

    runtime = Small()
    assert Worker(tiny_config(model_dir, plugins), plugins, runtime=runtime).memory_bytes()["total"] == 12345


def test_a_cache_is_never_larger_than_all_requests_at_full_length_need(model_dir: Path, plugins: PluginManager) -> None:
    config = tiny_config(model_dir, plugins)
    report = Worker(config, plugins).report()
    plan, _ = plan_runtime(config, [report], plugins)
    assert plan.num_blocks == 8 * 256 // 16 + 1


def test_the_cache_has_the_size_that_the_user_set(model_dir: Path, plugins: PluginManager) -> None:
    config = tiny_config(model_dir, plugins, kv_cache_memory=3 * MIB)
    assert Worker(config, plugins).report().available_kv_bytes == 3 * MIB


def test_a_cache_that_doesnt_fit_stops_the_start_with_the_numbers(model_dir: Path, plugins: PluginManager) -> None:
    config = tiny_config(model_dir, plugins, kv_cache_memory=2**50)
    with pytest.raises(ConfigError, match=rf"--kv-cache-memory {2**50} doesn't fit: of \d+ bytes, \d+ are free"):
        Worker(config, plugins).report()


def test_the_users_block_size_is_taken(model_dir: Path, plugins: PluginManager) -> None:
    report = Worker(tiny_config(model_dir, plugins, block_size=5), plugins).report()
    assert {spec.block_size for spec in report.kv_cache_specs.values()} == {5}


def test_a_step_before_the_cache_exists_is_an_error(model_dir: Path, plugins: PluginManager) -> None:
    worker = Worker(tiny_config(model_dir, plugins), plugins)
    with pytest.raises(EngineError, match="before initialize"):
        worker.sample_tokens()


@pytest.mark.parametrize("block_size", [1, 16])
def test_tokens_of_a_real_model_dont_depend_on_batch_chunks_blocks_or_preemption(
    model_dir: Path, plugins: PluginManager, block_size: int
) -> None:
    prompts = {"a": [5, 6, 7], "b": list(range(40, 60)), "c": [9]}
    params = {
        "a": SamplingParams(temperature=0.0, seed=0),
        "b": SamplingParams(temperature=1.0, top_p=0.9, seed=77),
        "c": SamplingParams(temperature=2.0, top_k=30, seed=-3),
    }
    config = tiny_config(model_dir, plugins, block_size=block_size)
    worker = Worker(config, plugins)
    scheduler = _started(worker, plugins, config)
    alone = {}
    for name, prompt_ids in prompts.items():
        scheduler.add(Sequence(name, prompt_ids, params[name]))
        _generate(worker, scheduler, 24)
        alone[name] = scheduler.finish(name).output_ids
    assert len({tuple(tokens) for tokens in alone.values()}) == 3

    for name, prompt_ids in prompts.items():
        scheduler.add(Sequence(name, prompt_ids, params[name]))
    worker.execute_model(scheduler.schedule({"a": 2, "b": 11, "c": 1}))
    scheduler.update(worker.sample_tokens())
    for step in range(30):
        if step in (4, 9):
            scheduler.preempt("bc"[step % 2])
        _generate(worker, scheduler, 1)
    assert {name: scheduler.sequences[name].output_ids[:24] for name in prompts} == alone


def test_ids_that_only_the_embedding_has_are_never_sampled(model_dir: Path, plugins: PluginManager) -> None:
    config = with_tokenizer_size(tiny_config(model_dir, plugins, padded_vocab_size=512), 259)
    worker = Worker(config, plugins)
    scheduler = _started(worker, plugins, config)
    for index in range(8):
        scheduler.add(Sequence(f"r{index}", [index], SamplingParams(temperature=5.0, seed=index, logprobs=5)))
    _generate(worker, scheduler, 60)
    tokens = [token for sequence in scheduler.sequences.values() for token in sequence.output_ids]
    assert len(tokens) == 480
    assert max(tokens) < 259
    unlimited = Worker(tiny_config(model_dir, plugins, padded_vocab_size=512), plugins)
    scheduler = _started(unlimited, plugins, config)
    for index in range(8):
        scheduler.add(Sequence(f"r{index}", [index], SamplingParams(temperature=5.0, seed=index)))
    _generate(unlimited, scheduler, 10)
    assert max(token for sequence in scheduler.sequences.values() for token in sequence.output_ids) >= 259


def test_starting_leaves_the_batch_empty(model_dir: Path, plugins: PluginManager) -> None:
    config = tiny_config(model_dir, plugins)
    worker = Worker(config, plugins)
    _started(worker, plugins, config)
    assert worker.call("batch_request_ids") == []


def test_only_named_methods_can_be_called_from_outside(model_dir: Path, plugins: PluginManager) -> None:
    worker = Worker(tiny_config(model_dir, plugins), plugins)
    worker.call("dummy_step")
    memory = worker.call("memory_bytes")
    assert 0 < memory["free"] <= memory["total"]
    assert memory["peak"] > 0
    with pytest.raises(
        EngineError,
        match="no method 'initialize' to call; it has batch_request_ids, kv_handshake, dummy_step, memory_bytes",
    ):
        worker.call("initialize", None)


def test_a_plan_without_a_block_beside_the_null_block_is_refused(model_dir: Path, plugins: PluginManager) -> None:
    config = tiny_config(model_dir, plugins)
    worker = Worker(config, plugins)
    plan, _ = plan_runtime(config, [worker.report()], plugins)
    with pytest.raises(EngineError, match="1 KV blocks"):
        worker.initialize(dataclasses.replace(plan, num_blocks=1))
