from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from corefw.builtins.executors.mp import MpExecutor
from corefw.config.engine_config import EngineConfig, ResolvedPlugin
from corefw.engine.kv_cache.sizing import plan_runtime
from corefw.errors import EngineDeadError, EngineError, EngineStartError
from corefw.observability.logging import configure_logging
from corefw.plugin_system.manager import PluginManager
from corefw.testing.server_process import is_alive
from corefw.testing.tiny_models import write_tiny_llama
from tests.runtime.engines import tiny_config
from tests.runtime.steps import HandScheduler, Sequence

# A stop takes at most 5 s; a busy machine gets three times that.
_STOP_LIMIT_S = 15.0
_NINE_HEADS = {"hidden_size": 45, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 6, "vocab_size": 261}


@pytest.fixture(scope="module")
def plugins() -> PluginManager:
    return PluginManager.discover("")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, plugins: PluginManager) -> EngineConfig:
    model = write_tiny_llama(tmp_path_factory.mktemp("models") / "nine-heads", **_NINE_HEADS)
    return tiny_config(model.parent, plugins, model=str(model), tensor_parallel_size=2, num_gpu_blocks_override=40)


@pytest.fixture(scope="module")
def executor(config: EngineConfig, plugins: PluginManager) -> Iterator[MpExecutor]:
    executor = _started(config, plugins)
    yield executor
    executor.shutdown()


def _started(config: EngineConfig, plugins: PluginManager) -> MpExecutor:
    executor = MpExecutor(config, plugins)
    plan, _ = plan_runtime(config, executor.reports(), plugins)
    executor.initialize(plan)
    return executor


def _step(executor: MpExecutor, scheduler: HandScheduler) -> None:
    executor.execute_model(scheduler.schedule()).result()
    scheduler.update(executor.sample_tokens().result())


def _wait_until_gone(pids: tuple[int, ...]) -> None:
    deadline = time.monotonic() + _STOP_LIMIT_S
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, pids
        time.sleep(0.02)


def test_ranks_have_two_and_one_of_three_kv_heads_and_as_many_blocks(
    executor: MpExecutor, config: EngineConfig, plugins: PluginManager
) -> None:
    reports = executor.reports()
    pages = [{spec.page_bytes for spec in report.kv_cache_specs.values()} for report in reports]
    assert [len(sizes) for sizes in pages] == [1, 1]
    assert pages[0].pop() == 2 * pages[1].pop()
    roomy = dataclasses.replace(config, cache=dataclasses.replace(config.cache, num_gpu_blocks_override=None))
    scarce = [reports[0], dataclasses.replace(reports[1], available_kv_bytes=reports[1].available_kv_bytes // 10)]
    plan, _ = plan_runtime(roomy, scarce, plugins)
    (spec, *others) = reports[1].kv_cache_specs.values()
    assert plan.num_blocks == scarce[1].available_kv_bytes // (spec.page_bytes * (1 + len(others)))


def test_a_step_is_done_when_it_is_asked_and_steps_finish_in_order(executor: MpExecutor) -> None:
    scheduler = HandScheduler(block_size=16)
    one = scheduler.add(Sequence("one", list(range(40))))
    executor.execute_model(scheduler.schedule({"one": 20})).result()
    first = executor.sample_tokens()
    executor.execute_model(scheduler.schedule({"one": 20})).result()
    second = executor.sample_tokens()
    assert second.result().sampled_token_ids[0]
    assert first.done()
    assert first.result().sampled_token_ids == [[]]
    scheduler.update(second.result())
    _step(executor, scheduler)
    assert len(one.output_ids) == 2
    scheduler.finish("one")
    _step(executor, scheduler)


def test_a_call_by_name_reaches_every_rank(executor: MpExecutor) -> None:
    scheduler = HandScheduler(block_size=16)
    scheduler.add(Sequence("held", [1, 2, 3]))
    _step(executor, scheduler)
    assert executor.collective_rpc("batch_request_ids") == [["held"], ["held"]]
    scheduler.finish("held")
    _step(executor, scheduler)
    assert executor.collective_rpc("batch_request_ids") == [[], []]
    with pytest.raises(EngineError, match="worker 0: a worker has no method 'fly'"):
        executor.collective_rpc("fly")


def test_a_step_that_fails_on_every_rank_is_an_error_and_the_next_one_works(executor: MpExecutor) -> None:
    assert isinstance(executor.sample_tokens().exception(), EngineError)
    scheduler = HandScheduler(block_size=16)
    one = scheduler.add(Sequence("one", [1, 2, 3]))
    _step(executor, scheduler)
    assert len(one.output_ids) == 1
    scheduler.finish("one")
    _step(executor, scheduler)


def test_a_step_with_more_than_the_queue_holds_arrives(executor: MpExecutor) -> None:
    with pytest.raises(EngineError, match="no method"):
        executor.collective_rpc("y" * 50, "x" * 10_000_000)
    assert executor.collective_rpc("batch_request_ids") == [[], []]


def test_workers_share_the_cpus(executor: MpExecutor) -> None:
    shares = [dict(_environment(pid))["COREFW_CPUS"].split(",") for pid in executor.pids]
    cpus = len(os.sched_getaffinity(0))
    assert sum(map(len, shares)) <= max(cpus, len(shares))


def _environment(pid: int) -> Iterator[tuple[str, str]]:
    for entry in Path(f"/proc/{pid}/environ").read_text().split("\0"):
        name, _, value = entry.partition("=")
        yield name, value


def test_log_lines_carry_their_rank_and_new_level_a_killed_worker_is_named_and_the_others_end_with_it(
    config: EngineConfig, plugins: PluginManager, capfd: pytest.CaptureFixture[str]
) -> None:
    configure_logging("INFO", "core")
    executor = _started(config, plugins)
    said = capfd.readouterr().err
    assert " worker-0 rank 0 of 2" in said
    assert " worker-1 rank 1 of 2" in said
    for level in ("ERROR", "INFO"):
        executor.collective_rpc("set_log_level", level)
    said = capfd.readouterr().err
    assert said.count("the log level is INFO from now on") == 2
    assert "ERROR from now on" not in said
    told: SimpleQueue[str] = SimpleQueue()
    executor.on_failure(told.put)
    os.kill(executor.pids[1], signal.SIGSTOP)
    scheduler = HandScheduler(block_size=16)
    scheduler.add(Sequence("one", [1, 2, 3]))
    executor.execute_model(scheduler.schedule()).result()
    sampled = executor.sample_tokens()
    assert not sampled.done()
    os.kill(executor.pids[1], signal.SIGKILL)
    with pytest.raises(EngineDeadError, match=r"worker 1 was killed by signal 9 \(SIGKILL\)"):
        sampled.result()
    assert told.get(timeout=_STOP_LIMIT_S) == "worker 1 was killed by signal 9 (SIGKILL)"
    assert isinstance(executor.execute_model(scheduler.schedule()).exception(), EngineDeadError)
    pids = executor.pids
    executor.shutdown()
    _wait_until_gone(pids)


def test_a_worker_that_hangs_is_killed_by_the_stop(config: EngineConfig, plugins: PluginManager) -> None:
    alone = dataclasses.replace(config, parallel=dataclasses.replace(config.parallel, tensor_parallel_size=1))
    executor = MpExecutor(alone, plugins)
    os.kill(executor.pids[0], signal.SIGSTOP)
    started = time.monotonic()
    executor.shutdown()
    executor.shutdown()
    assert time.monotonic() - started < _STOP_LIMIT_S
    assert not is_alive(executor.pids[0])
    with pytest.raises(EngineError, match="shut down"):
        executor.collective_rpc("memory_bytes")


def test_a_rank_that_cannot_start_says_why_and_the_others_are_ended(
    config: EngineConfig, plugins: PluginManager, tmp_path: Path
) -> None:
    missing = dataclasses.replace(
        config.model_info,
        files=dataclasses.replace(config.model_info.files, weights=(str(tmp_path / "gone.safetensors"),)),
    )
    with pytest.raises(EngineStartError, match=r"worker [01]: .*gone\.safetensors"):
        MpExecutor(dataclasses.replace(config, model_info=missing), plugins)


def test_a_rank_with_other_plugins_refuses_to_start_and_names_the_difference(
    config: EngineConfig, plugins: PluginManager
) -> None:
    extra = ResolvedPlugin(
        group="executors", name="warp", value="warp:Drive", distribution="warp", version="9", named=True
    )
    others = dataclasses.replace(config.plugins, resolved=(*config.plugins.resolved, extra))
    alone = dataclasses.replace(config.parallel, tensor_parallel_size=1)
    with pytest.raises(EngineStartError, match=r"worker 0: .*executors: warp/warp 9 isn't installed here") as caught:
        MpExecutor(dataclasses.replace(config, plugins=others, parallel=alone), plugins)
    assert caught.value.kind == "plugin"
