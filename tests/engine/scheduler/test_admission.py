"""What admission keeps back: active requests, blocks under the watermark, whole sequences; and long prompts."""

from __future__ import annotations

import logging

import pytest

from corefw.engine.scheduler.scheduler import DefaultScheduler
from corefw.messages.kv_events import BlockStored
from corefw.messages.sampling import SamplingParams
from tests.engine.scheduler.setup import make_request, make_scheduler, make_spec, result_of


def step(scheduler: DefaultScheduler, *names: str) -> dict[str, int]:
    """One step in which these requests get a token; tokens computed by request."""
    scheduled = scheduler.schedule()
    scheduler.update(scheduled, result_of(scheduled, **{name: [7] for name in names}))
    return scheduled.num_scheduled_tokens


def test_fewer_requests_may_run_than_there_are_slots() -> None:
    scheduler = make_scheduler(max_num_seqs=4, max_num_active_seqs=2)
    for name in "abc":
        scheduler.add_request(make_request(name))
    assert list(step(scheduler, "a", "b")) == ["a", "b"]
    assert scheduler.stats().num_waiting == 1


def test_admission_leaves_the_watermark_free_while_something_runs() -> None:
    # 19 blocks, of which 4 are kept free.
    scheduler = make_scheduler(num_blocks=20, watermark=0.25)
    scheduler.add_request(make_request("a", 32))
    scheduler.add_request(make_request("b", 29))
    scheduler.add_request(make_request("c", 5))
    assert list(step(scheduler, "a", "b")) == ["a"], "b wants 8 of 11 blocks, and 4 must stay"
    scheduler = make_scheduler(num_blocks=20, watermark=0.25)
    scheduler.add_request(make_request("a", 32))
    scheduler.add_request(make_request("b", 28))
    assert list(step(scheduler, "a", "b")) == ["a", "b"]


def test_the_watermark_keeps_nobody_out_of_an_empty_engine() -> None:
    scheduler = make_scheduler(num_blocks=13, watermark=0.9)
    scheduler.add_request(make_request("a", 40))
    assert step(scheduler, "a") == {"a": 40}


def test_running_requests_may_go_below_the_watermark() -> None:
    scheduler = make_scheduler(num_blocks=5, watermark=0.5)
    scheduler.add_request(make_request("a", 8, params=SamplingParams(max_tokens=None)))
    for _ in range(8):
        assert step(scheduler, "a")["a"] >= 1
    assert scheduler.stats().kv_usage == 1.0


@pytest.mark.parametrize(("must_fit", "admitted"), [(True, ["a"]), (False, ["a", "b"])])
def test_a_first_chunk_is_enough_where_the_whole_need_not_fit(must_fit: bool, admitted: list[str]) -> None:
    scheduler = make_scheduler(num_blocks=11, max_num_batched_tokens=16, full_sequence_must_fit=must_fit)
    scheduler.add_request(make_request("a", 8))
    scheduler.add_request(make_request("b", 40))
    assert list(step(scheduler, "a")) == admitted


def test_a_long_prompt_gets_its_threshold_while_others_are_there_and_all_when_alone() -> None:
    scheduler = make_scheduler(num_blocks=100, max_num_batched_tokens=20, long_prefill_token_threshold=6)
    scheduler.add_request(make_request("a", 60))
    assert step(scheduler) == {"a": 20}
    scheduler.add_request(make_request("b", 9))
    assert step(scheduler) == {"a": 6, "b": 6}
    assert step(scheduler, "b") == {"a": 6, "b": 3}


def test_an_adaptive_threshold_grows_to_the_even_share() -> None:
    scheduler = make_scheduler(
        num_blocks=100,
        max_num_batched_tokens=20,
        long_prefill_token_threshold=2,
        adaptive_long_prefill_threshold=True,
    )
    scheduler.add_request(make_request("a", 60))
    scheduler.add_request(make_request("b", 60))
    assert step(scheduler) == {"a": 10, "b": 10}


# Priority


def make_crowd() -> DefaultScheduler:
    """Three requests of three blocks each in a pool of nine; ``low`` was admitted first."""
    scheduler = make_scheduler(num_blocks=10, max_model_len=24, scheduling_policy="priority")
    for name, priority, arrival in (("low", 5, 1.0), ("mid", 2, 2.0), ("high", 1, 3.0)):
        params = SamplingParams(max_tokens=None)
        request = make_request(name, 11, priority=priority, arrival_s=arrival, params=params)
        scheduler.add_request(request)
        step(scheduler, "low", "mid", "high")
    return scheduler


def test_a_victim_that_had_its_share_gives_it_back_and_the_more_important_go_on() -> None:
    scheduler = make_crowd()
    for _ in range(6):
        scheduled = scheduler.schedule()
        scheduler.update(scheduled, result_of(scheduled, low=[7], mid=[7], high=[7]))
        if scheduled.preempted_request_ids:
            break
    assert scheduled.preempted_request_ids == ["low"]
    assert "low" not in scheduled.num_scheduled_tokens
    assert set(scheduled.num_scheduled_tokens) <= {"mid", "high"}
    assert scheduled.total_num_scheduled_tokens == sum(scheduled.num_scheduled_tokens.values())


def test_the_more_important_waits_less_whenever_it_came() -> None:
    scheduler = make_scheduler(max_num_seqs=1, scheduling_policy="priority")
    once = SamplingParams(max_tokens=1)
    for name, priority in (("first", 3), ("second", 3), ("urgent", -1)):
        arrival_s = float(ord(name[0]))
        scheduler.add_request(make_request(name, 4, priority=priority, arrival_s=arrival_s, params=once))
    order = [next(iter(step(scheduler, "first", "second", "urgent"))) for _ in range(3)]
    assert order == ["urgent", "first", "second"]


# Windows


def test_a_long_prompt_with_windows_is_admitted_where_its_whole_length_would_not_fit() -> None:
    specs = [make_spec(window=6)]
    scheduler = make_scheduler(num_blocks=8, max_num_batched_tokens=8, specs=specs)
    scheduler.add_request(make_request("a", 60))
    counts = [step(scheduler, *(["a"] if index == 7 else [])) for index in range(8)]
    assert [count["a"] for count in counts] == [8] * 7 + [4]


# Events


def test_events_are_recorded_when_asked_for() -> None:
    scheduler = make_scheduler(kv_events=True)
    scheduler.add_request(make_request("a", 9))
    step(scheduler, "a")
    batch = scheduler.take_kv_events()
    assert batch is not None
    assert [type(event) for event in batch.events] == [BlockStored, BlockStored]
    assert make_scheduler().take_kv_events() is None


@pytest.mark.parametrize(("hash_algo", "num_warnings"), [("sha256", 0), ("xxhash", 1)])
def test_events_with_hashes_that_mean_nothing_elsewhere_are_warned_of(
    hash_algo: str, num_warnings: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with caplog.at_level(logging.WARNING, logger="corefw"):
        make_scheduler(kv_events=True, hash_algo=hash_algo)
    assert sum("set PYTHONHASHSEED" in record.getMessage() for record in caplog.records) == num_warnings
