from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec
import pytest

from corefw.engine.core import EngineCore
from corefw.engine.llm_engine import LLMEngine
from corefw.engine.scheduler.scheduler import DefaultScheduler
from corefw.errors import ConfigError, EngineDeadError, PluginError, RequestError
from corefw.messages.outputs import EngineCoreOutput, ErrorKind, FinishReason, SchedulerStats
from tests.engine.fake_engine import WATCHED, WatchedExecutor, config, expected, plugins, request, run, tokens


@pytest.fixture
def engine() -> Iterator[LLMEngine]:
    made = LLMEngine(config(distributed_executor_backend=WATCHED), plugins())
    yield made
    made.shutdown()


def end(outputs: list[EngineCoreOutput]) -> tuple[FinishReason | None, str | None]:
    return outputs[-1].finish_reason, outputs[-1].error


def assert_whole(outputs: dict[str, list[EngineCoreOutput]], *request_ids: str) -> None:
    for request_id in request_ids:
        assert tokens(outputs[request_id]) == expected(request_id)
        assert end(outputs[request_id]) == (FinishReason.LENGTH, None)


def assert_at_rest(engine: LLMEngine) -> None:
    """Nothing runs or waits, every block is free, and the worker holds nothing."""
    assert engine.stats is not None
    assert (engine.stats.num_running, engine.stats.num_waiting, engine.stats.kv_usage) == (0, 0, 0.0)
    assert WatchedExecutor.latest.held() == []


def test_requests_get_their_tokens_and_leave_nothing_behind(engine: LLMEngine) -> None:
    for request_id in "abc":
        engine.add_request(request(request_id))
    assert_whole(run(engine), *"abc")
    assert_at_rest(engine)


@pytest.mark.parametrize("key", ["raise_at", "raise_in_forward_at"])
def test_a_step_that_raises_ends_its_requests_alone(engine: LLMEngine, key: str) -> None:
    engine.add_request(request("bad", **{key: 2}))
    engine.add_request(request("same step"))
    outputs = run(engine)
    for request_id in ("bad", "same step"):
        reason, error = end(outputs[request_id])
        assert reason is FinishReason.ERROR
        assert error is not None
        assert "Error" not in error, "no exception class names for clients"
        assert tokens(outputs[request_id]) == expected(request_id, 2)
    assert_at_rest(engine)
    engine.add_request(request("bad"))  # the worker would refuse an id that it still holds
    assert_whole(run(engine), "bad")


def test_a_step_that_raises_leaves_waiting_requests_whole() -> None:
    engine = LLMEngine(config(distributed_executor_backend=WATCHED, max_num_seqs=1), plugins())
    engine.add_request(request("bad", raise_at=0))
    engine.add_request(request("waits"))
    outputs = run(engine)
    assert end(outputs["bad"])[0] is FinishReason.ERROR
    assert_whole(outputs, "waits")
    assert_at_rest(engine)
    engine.shutdown()


def test_a_request_that_fails_alone_leaves_its_neighbours_whole(engine: LLMEngine) -> None:
    engine.add_request(request("good"))
    engine.add_request(request("bad", fail_at=3))
    engine.add_request(request("fine"))
    outputs = run(engine)
    assert end(outputs["bad"]) == (FinishReason.ERROR, "told to fail")
    assert tokens(outputs["bad"]) == expected("bad", 3)
    assert_whole(outputs, "good", "fine")
    assert_at_rest(engine)


def test_a_request_that_can_never_run_ends_in_an_output_with_the_reason(engine: LLMEngine) -> None:
    engine.add_request(request("good"))
    engine.add_request(request("long", prompt_ids=[1] * 600))
    outputs = run(engine)
    assert [(o.finish_reason, o.error_kind) for o in outputs["long"]] == [(FinishReason.ERROR, ErrorKind.REQUEST)]
    assert "512" in (outputs["long"][0].error or "")
    assert_whole(outputs, "good")
    assert_at_rest(engine)


def test_a_rejected_request_alone_is_told_without_a_step(engine: LLMEngine) -> None:
    engine.add_request(request("long", prompt_ids=[1] * 600))
    assert engine.has_work()
    assert [output.request_id for output in engine.step()] == ["long"]
    assert not engine.has_work()
    assert WatchedExecutor.latest.steps == []


def test_an_abort_between_steps_ends_the_request_and_tells_the_worker(engine: LLMEngine) -> None:
    engine.add_request(request("a"))
    engine.add_request(request("b"))
    engine.step()
    engine.abort(["a", "unknown"])
    outputs = run(engine)
    assert end(outputs["a"]) == (FinishReason.ABORT, None)
    assert tokens(outputs["a"]) == []
    assert [o.finish_reason for o in outputs["b"]][-1] is FinishReason.LENGTH
    assert_at_rest(engine)


def test_gauges_fall_to_zero_when_everything_is_aborted(engine: LLMEngine) -> None:
    for request_id in "abcd":
        engine.add_request(request(request_id, 50))
    engine.step()
    assert engine.stats is not None
    assert engine.stats.num_running == 4
    assert engine.stats.kv_usage > 0
    engine.abort([*"abcd"])
    assert {output.finish_reason for output in engine.step()} == {FinishReason.ABORT}
    assert_at_rest(engine)
    assert not engine.has_work()


def test_an_abort_during_a_step_comes_before_its_result(engine: LLMEngine) -> None:
    engine.add_request(request("a"))
    engine.add_request(request("b"))
    engine.step()
    WatchedExecutor.latest.during_step = lambda: engine.core.abort_soon(["a"])
    outputs = {output.request_id: output for output in engine.step()}
    assert outputs["a"].finish_reason is FinishReason.ABORT
    assert outputs["a"].new_token_ids == []
    assert outputs["b"].new_token_ids == expected("b")[1:2]


def test_an_abort_during_a_step_that_raises_ends_the_request_once(engine: LLMEngine) -> None:
    engine.add_request(request("a", raise_at=1))
    engine.step()
    WatchedExecutor.latest.during_step = lambda: engine.core.abort_soon(["a"])
    assert [output.finish_reason for output in engine.step()] == [FinishReason.ABORT]
    run(engine)
    assert_at_rest(engine)


def test_the_last_step_only_tells_the_worker_whom_to_forget(engine: LLMEngine) -> None:
    engine.add_request(request("a", 1))
    assert engine.step()[-1].finish_reason is FinishReason.LENGTH
    assert WatchedExecutor.latest.held() == ["a"]
    assert engine.has_work()
    assert engine.step() == []
    assert WatchedExecutor.latest.held() == []
    assert WatchedExecutor.latest.steps[-1].total_num_scheduled_tokens == 0
    assert not engine.has_work()
    assert engine.step() == []


def test_workers_that_are_gone_end_the_core_and_not_a_request(engine: LLMEngine) -> None:
    engine.add_request(request("a", dead_at=1))
    engine.step()
    with pytest.raises(EngineDeadError, match="workers are gone"):
        engine.step()


def test_workers_that_fail_in_every_step_end_the_core(engine: LLMEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("always")

    monkeypatch.setattr(WatchedExecutor.latest, "execute_model", fail)
    engine.add_request(request("a"))
    (output,) = engine.step()
    assert output.finish_reason is FinishReason.ERROR
    for _ in range(2):
        assert engine.step() == []
    with pytest.raises(EngineDeadError, match="3 times in a row"):
        engine.step()


def test_a_worker_that_dies_between_steps_makes_the_next_step_raise(engine: LLMEngine) -> None:
    reasons: list[str] = []
    engine.core.on_failure(reasons.append)
    WatchedExecutor.latest.fail("rank 1 was killed")
    assert reasons == ["rank 1 was killed"]
    assert engine.has_work()
    with pytest.raises(EngineDeadError, match="rank 1 was killed"):
        engine.step()


def test_calls_give_plain_data(engine: LLMEngine) -> None:
    engine.add_request(request("a"))
    run(engine)
    assert engine.core.call("plan")["block_size"] == 4
    assert engine.core.call("stats")["num_generation_tokens"] == 5
    assert engine.core.call("reset_prefix_cache") is True
    assert {"group": "schedulers", "name": "default"}.items() <= next(
        plugin for plugin in engine.core.call("plugins")["plugins"] if plugin["group"] == "schedulers"
    ).items()


def test_what_the_prefix_cache_did_can_be_asked_for_once() -> None:
    engine = LLMEngine(config(kv_events=True), plugins())
    engine.add_request(request("a"))
    run(engine)
    told = engine.core.call("kv_events")
    again = engine.core.call("kv_events")
    engine.shutdown()
    assert told["first"] == 0
    assert {event["type"] for event in told["events"]} == {"stored"}
    assert isinstance(told["events"][0]["block_hash"], bytes)
    assert again == {"first": len(told["events"]), "events": []}


def test_events_that_are_not_recorded_can_not_be_asked_for(engine: LLMEngine) -> None:
    with pytest.raises(RequestError, match="start it with --kv-events"):
        engine.core.call("kv_events")


def test_the_log_level_can_be_set_by_a_call(engine: LLMEngine) -> None:
    logger = logging.getLogger("corefw")
    before = logger.level
    engine.core.call("set_log_level", ["ERROR"])
    assert logger.level == logging.ERROR
    assert ("set_log_level", "ERROR") in WatchedExecutor.latest.calls
    with pytest.raises(RequestError, match="DEBUG, INFO, WARNING, ERROR"):
        engine.core.call("set_log_level", ["LOUD"])
    logger.setLevel(before)


@pytest.mark.parametrize("method", ["shutdown", "__init__", "_run", ""])
def test_a_call_outside_the_list_is_refused(engine: LLMEngine, method: str) -> None:
    with pytest.raises(RequestError, match="reset_prefix_cache"):
        engine.core.call(method)


def scenario(encode_messages: bool) -> tuple[Any, ...]:
    engine = LLMEngine(
        config(distributed_executor_backend="tests.engine.fake_engine:ExtraExecutor"),
        plugins(),
        encode_messages=encode_messages,
    )
    for request_id in "abc":
        engine.add_request(request(request_id))
    engine.add_request(request("long", prompt_ids=[1] * 600))
    first = engine.step()
    engine.abort(["b"])
    result = (engine.config, engine.plan, _timeless(first), _timeless_each(run(engine)), engine.stats)
    engine.shutdown()
    return result


def _timeless(outputs: list[EngineCoreOutput]) -> list[EngineCoreOutput]:
    """Two runs never happen at the same time."""
    return [msgspec.structs.replace(output, times=None) for output in outputs]


def _timeless_each(outputs: dict[str, list[EngineCoreOutput]]) -> dict[str, list[EngineCoreOutput]]:
    return {request_id: _timeless(own) for request_id, own in outputs.items()}


def test_encoding_every_message_changes_nothing() -> None:
    plain, encoded = scenario(False), scenario(True)
    assert plain == encoded
    assert plain[2][1].extra == {"seen": [1, "a", b"b"]}, "the scenario has plain data of plugins in it"
    assert isinstance(encoded[4], SchedulerStats)


def test_steps_that_are_made_ahead_bring_the_same_tokens_in_the_same_order() -> None:
    engine = LLMEngine(config(distributed_executor_backend=WATCHED, async_scheduling=True), plugins())
    engine.add_request(request("good"))
    engine.add_request(request("bad", fail_at=3))
    outputs = run(engine)
    assert_whole(outputs, "good")
    assert (tokens(outputs["bad"]), end(outputs["bad"])[1]) == (expected("bad", 3), "told to fail")
    assert_at_rest(engine)
    engine.add_request(request("same"))
    engine.add_request(request("raises", raise_at=2))
    outputs = run(engine)
    assert {name: end(own)[0] for name, own in outputs.items()} == dict.fromkeys(["same", "raises"], FinishReason.ERROR)
    assert tokens(outputs["same"]) == expected("same", 2)
    assert_at_rest(engine)
    engine.shutdown()


class OneStepAtATime(DefaultScheduler):
    name: ClassVar[str] = "careful"
    schedules_ahead: ClassVar[bool] = False


def test_a_scheduler_that_makes_one_step_at_a_time_isnt_asked_for_two() -> None:
    careful = {"scheduler": "tests.engine.test_core:OneStepAtATime", "distributed_executor_backend": WATCHED}
    with pytest.raises(ConfigError, match=r"--async-scheduling: scheduler .*OneStepAtATime.* schedules_ahead"):
        EngineCore(config(**careful, async_scheduling=True), plugins())
    engine = LLMEngine(config(**careful, pipeline_parallel_size=2), plugins())
    engine.add_request(request("a"))
    engine.add_request(request("b"))
    engine.step()
    assert len(WatchedExecutor.latest.steps) == 1
    engine.shutdown()


def test_an_unknown_executor_stops_the_start_and_names_the_option() -> None:
    with pytest.raises(PluginError, match=r"unii.*--distributed-executor-backend"):
        EngineCore(config(distributed_executor_backend="unii"), plugins())


@pytest.mark.parametrize("path", ["nowhere.at_all:Executor", "corefw.testing.fake_executor:Missing"])
def test_an_import_path_that_leads_nowhere_stops_the_start_and_names_the_option(path: str) -> None:
    with pytest.raises(ConfigError, match=f"--distributed-executor-backend '{path}' can't be imported"):
        EngineCore(config(distributed_executor_backend=path), plugins())


def test_an_import_path_to_something_else_than_a_class_names_the_option() -> None:
    with pytest.raises(ConfigError, match="--distributed-executor-backend 'os:path' is no class"):
        EngineCore(config(distributed_executor_backend="os:path"), plugins())


def test_a_start_that_fails_late_stops_the_workers() -> None:
    with pytest.raises(PluginError, match="no_such_policy"):
        EngineCore(config(distributed_executor_backend=WATCHED, scheduling_policy="no_such_policy"), plugins())
    assert WatchedExecutor.latest.num_shutdowns == 1
