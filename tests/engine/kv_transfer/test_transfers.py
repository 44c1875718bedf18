from __future__ import annotations

import random

import pytest

from corefw.errors import RequestError
from corefw.interfaces.kv_connector import FinishedTransfer, Matched
from corefw.messages.kv_transfer import TransferResults
from corefw.messages.outputs import FinishReason
from corefw.messages.sampling import SamplingParams
from corefw.plugin_system.contributions import MAX_FAILURES
from tests.engine.kv_transfer.setup import Bench, received
from tests.engine.scheduler.setup import BLOCK_SIZE, make_request, make_scheduler

PROMPT = 10  # tokens: three blocks


def test_without_a_connector_a_step_carries_no_metadata() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a"))
    assert scheduler.schedule().kv_transfer is None


def test_a_load_within_the_step_leaves_the_rest_of_the_prompt_to_compute() -> None:
    bench = Bench()
    bench.connector.matches["a"] = Matched(8)
    bench.scheduler.add_request(make_request("a", PROMPT))
    scheduled, outputs = bench.step()
    assert scheduled.num_scheduled_tokens == {"a": 2}
    assert scheduled.new_requests[0].num_computed_tokens == 8
    assert bench.connector.allocated == [("a", 0, 8)]
    assert outputs[0].num_cached_tokens == 8
    assert scheduled.kv_transfer == {"step": 1}


def test_at_least_one_token_is_computed() -> None:
    bench = Bench()
    bench.connector.matches["a"] = Matched(PROMPT)
    bench.scheduler.add_request(make_request("a", PROMPT))
    scheduled, _ = bench.step()
    assert scheduled.num_scheduled_tokens == {"a": 1}
    assert bench.connector.allocated == [("a", 0, PROMPT - 1)]


def test_what_was_loaded_is_found_by_the_next_request() -> None:
    bench = Bench()
    bench.connector.matches["a"] = Matched(8)
    bench.scheduler.add_request(make_request("a", PROMPT))
    bench.run()
    bench.scheduler.add_request(make_request("b", prompt_ids=make_request("a", PROMPT).prompt_ids))
    scheduled, _ = bench.step()
    assert scheduled.num_scheduled_tokens == {"b": 2}
    assert bench.connector.allocated[-1] == ("b", 8, 0)


def test_a_request_waits_for_its_load_while_others_compute() -> None:
    bench = Bench()
    bench.connector.matches["a"] = Matched(8, is_async=True)
    bench.scheduler.add_request(make_request("a", PROMPT))
    bench.scheduler.add_request(make_request("b", 3))
    scheduled, _ = bench.step()
    assert list(scheduled.num_scheduled_tokens) == ["b"]
    assert len(scheduled.block_ids_to_zero[0]) == 2 + 1  # the load's blocks are cleared before it begins
    assert bench.scheduler.blocked_reasons() == {"a": "its KV is being loaded"}
    bench.step(received("a"))
    scheduled, _ = bench.step()
    assert scheduled.num_scheduled_tokens == {"b": 1, "a": 2}
    assert not set(scheduled.block_ids_to_zero[0]) & set(bench.connector_blocks("a")[:2])
    assert bench.connector.allocated == [("a", 0, 8), ("b", 0, 0)]


def test_a_connector_that_does_not_know_yet_is_asked_again_and_starves_nobody() -> None:
    bench = Bench()
    bench.connector.matches["a"] = Matched(None)
    bench.scheduler.add_request(make_request("a", PROMPT))
    bench.scheduler.add_request(make_request("b", 3))
    assert list(bench.step()[0].num_scheduled_tokens) == ["b"]
    assert bench.scheduler.has_work()
    bench.connector.matches["a"] = Matched(4)
    assert bench.step()[0].num_scheduled_tokens == {"b": 1, "a": 6}


def test_a_late_or_duplicate_report_is_ignored() -> None:
    bench = Bench()
    bench.connector.matches["a"] = Matched(8, is_async=True)
    bench.scheduler.add_request(make_request("a", PROMPT))
    bench.step()
    bench.step(received("a"), TransferResults(finished_sending=("a", "nobody")))
    bench.step(received("a", "nobody", blocks=(1, 2, 99)))
    outputs = bench.run()
    assert outputs["a"][-1].finish_reason is FinishReason.LENGTH
    assert bench.num_used == 0


@pytest.mark.parametrize("is_async", [False, True])
def test_a_failed_load_is_computed_from_the_last_good_block(is_async: bool) -> None:
    bench = Bench()
    bench.connector.matches["a"] = Matched(8, is_async)
    bench.scheduler.add_request(make_request("a", PROMPT))
    scheduled = bench.scheduler.schedule()
    second = bench.connector_blocks("a")[1]
    report = received("a", failed=("a",), blocks=(second,)) if is_async else TransferResults(failed_blocks=(second,))
    assert bench.finish(scheduled, report) == []
    scheduled, outputs = bench.step()
    assert scheduled.num_scheduled_tokens == {"a": PROMPT - BLOCK_SIZE}
    assert scheduled.new_requests[0].num_computed_tokens == BLOCK_SIZE
    assert outputs[0].num_cached_tokens == BLOCK_SIZE
    assert bench.connector.allocated[-1] == ("a", BLOCK_SIZE, 0)
    bench.run()
    assert bench.num_used == 0


def test_of_a_failed_load_without_named_blocks_nothing_counts() -> None:
    bench = Bench()
    bench.connector.matches["a"] = Matched(8, is_async=True)
    bench.scheduler.add_request(make_request("a", PROMPT))
    bench.step()
    bench.step(received(failed=("a",)))
    assert bench.step()[0].num_scheduled_tokens == {"a": PROMPT}


@pytest.mark.parametrize("is_async", [False, True])
def test_a_failed_load_fails_its_request_alone_where_the_operator_says_so(is_async: bool) -> None:
    bench = Bench(policy="fail")
    bench.connector.matches["a"] = Matched(8, is_async)
    bench.scheduler.add_request(make_request("a", PROMPT))
    bench.scheduler.add_request(make_request("b", 3))
    scheduled = bench.scheduler.schedule()
    block = bench.connector_blocks("a")[0]
    outputs = bench.finish(scheduled, received(*(["a"] if is_async else []), blocks=(block,)))
    assert [(o.request_id, o.finish_reason) for o in outputs if o.finish_reason] == [("a", FinishReason.ERROR)]
    assert bench.run()["b"][-1].finish_reason is FinishReason.LENGTH
    assert bench.num_used == 0


def test_an_abort_in_the_middle_of_a_load_keeps_its_blocks_until_it_is_reported() -> None:
    bench = Bench()
    bench.connector.matches["a"] = Matched(8, is_async=True)
    bench.scheduler.add_request(make_request("a", PROMPT))
    bench.step()
    blocks = set(bench.connector_blocks("a"))
    bench.scheduler.finish_requests(["a"], FinishReason.ABORT)
    assert bench.num_used == 2
    assert bench.scheduler.has_work()
    bench.scheduler.add_request(make_request("b", PROMPT))
    scheduled, _ = bench.step()
    assert not blocks & set(scheduled.block_ids_to_zero[0])
    with pytest.raises(RequestError, match="in use"):
        bench.scheduler.add_request(make_request("a"))
    bench.step(received("a"))
    bench.run()
    assert bench.num_used == 0
    assert not bench.scheduler.has_work()


def test_blocks_stay_until_they_are_sent_and_the_client_gets_the_parameters() -> None:
    bench = Bench()
    bench.connector.endings["a"] = FinishedTransfer(defer_free=True, params={"from": "here"})
    bench.scheduler.add_request(make_request("a", PROMPT, params=SamplingParams(max_tokens=1)))
    _, outputs = bench.step()
    assert outputs[0].extra == {"kv_transfer_params": {"from": "here"}}
    assert bench.connector.ended == [("a", FinishReason.LENGTH)]
    assert bench.num_used == 3
    assert not bench.scheduler.reset_prefix_cache()
    bench.step(TransferResults(finished_sending=("a",)))
    assert bench.num_used == 0
    assert bench.scheduler.reset_prefix_cache()
    assert bench.connector.num_resets == 1


def test_a_request_waits_for_blocks_that_are_being_sent() -> None:
    bench = Bench(num_blocks=4)
    bench.connector.endings["a"] = FinishedTransfer(defer_free=True)
    bench.scheduler.add_request(make_request("a", PROMPT, params=SamplingParams(max_tokens=1)))
    bench.step()
    bench.scheduler.add_request(make_request("b", PROMPT, params=SamplingParams(max_tokens=1)))
    for _ in range(3):
        assert bench.step()[0].num_scheduled_tokens == {}
    bench.step(TransferResults(finished_sending=("a",)))
    assert bench.run()["b"][-1].finish_reason is FinishReason.LENGTH


def test_a_load_is_over_when_all_ranks_have_reported_it() -> None:
    bench = Bench(num_ranks=2)
    bench.connector.matches["a"] = Matched(8, is_async=True)
    bench.scheduler.add_request(make_request("a", PROMPT))
    bench.step()
    bench.step(received("a", rank=0), received("a", rank=0))
    assert bench.step()[0].num_scheduled_tokens == {}
    bench.step(received("a", rank=1))
    assert bench.step()[0].num_scheduled_tokens == {"a": 2}


def test_a_request_that_runs_out_of_blocks_takes_them_from_one_that_only_waits() -> None:
    bench = Bench(num_blocks=7, full_sequence_must_fit=False)
    params = SamplingParams(max_tokens=12)
    bench.scheduler.add_request(make_request("a", PROMPT, params=params))
    bench.step()
    bench.connector.matches["b"] = Matched(8, is_async=True)
    bench.scheduler.add_request(make_request("b", PROMPT, params=params))
    bench.scheduler._max_active = 1  # b is loaded, and can't run yet
    bench.step()
    bench.step(received("b"))
    bench.connector.matches.clear()
    outputs = bench.run()
    assert {name: news[-1].finish_reason for name, news in outputs.items()} == dict.fromkeys("ab", FinishReason.LENGTH)
    assert bench.num_used == 0


def test_a_load_that_the_cache_can_not_hold_at_once_is_forgone() -> None:
    # A window keeps two blocks of the sequence, and loading all of it would take as many as there are tokens.
    bench = Bench(num_blocks=14, window=BLOCK_SIZE, max_num_batched_tokens=8)
    bench.connector.matches["a"] = Matched(31)
    bench.scheduler.add_request(make_request("a", 32))
    outputs = bench.run()
    assert outputs["a"][-1].finish_reason is FinishReason.LENGTH
    assert bench.connector.allocated == [("a", 0, 0)]
    assert bench.num_used == 0


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("method", ["matched_tokens", "after_alloc", "build_metadata"])
def test_a_connector_that_raises_costs_the_load_and_nothing_else(method: str, is_async: bool) -> None:
    bench = Bench()
    bench.connector.raises.add(method)
    bench.connector.matches["a"] = Matched(8, is_async)
    bench.scheduler.add_request(make_request("a", PROMPT))
    bench.step()
    bench.connector.raises.clear()
    bench.step(received("a"))
    assert bench.run()["a"][-1].finish_reason is FinishReason.LENGTH
    assert bench.num_used == 0


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("matched_tokens", 8),
        ("matched_tokens", None),
        ("matched_tokens", Matched(-4)),
        ("matched_tokens", Matched(8.0)),  # type: ignore[arg-type]
        ("matched_tokens", Matched("8")),  # type: ignore[arg-type]
        ("build_metadata", None),
        ("build_metadata", ["step"]),
        ("request_finished", None),
        ("request_finished", True),
    ],
)
def test_a_connector_that_answers_nonsense_costs_the_load_and_nothing_else(method: str, answer: object) -> None:
    bench = Bench()
    bench.connector.matches["a"] = Matched(8)
    bench.connector.nonsense[method] = answer
    for request_id in ("a", "b"):
        bench.scheduler.add_request(make_request(request_id, PROMPT))
    outputs = bench.run()
    assert [outputs[name][-1].finish_reason for name in ("a", "b")] == [FinishReason.LENGTH] * 2
    assert bench.num_used == 0


def test_parameters_that_can_not_be_sent_are_left_out_and_the_blocks_stay_until_they_are_sent() -> None:
    bench = Bench()
    bench.connector.endings["a"] = FinishedTransfer(defer_free=True, params={"address": object()})
    bench.scheduler.add_request(make_request("a", PROMPT, params=SamplingParams(max_tokens=1)))
    _, outputs = bench.step()
    assert outputs[-1].extra == {}
    assert bench.num_used == 3
    bench.step(TransferResults(finished_sending=("a",)))
    assert bench.num_used == 0


def test_a_connector_whose_asynchronous_loads_keep_breaking_is_not_asked_for_more() -> None:
    bench = Bench(num_blocks=60)
    bench.connector.raises.add("after_alloc")
    for index in range(12):
        bench.connector.matches[str(index)] = Matched(8, is_async=True)
        bench.scheduler.add_request(make_request(str(index), PROMPT, params=SamplingParams(max_tokens=1)))
        ended = False
        for _ in range(10):
            ended = ended or any(output.finish_reason for output in bench.step()[1])
        assert ended
    assert bench.num_used == MAX_FAILURES * 2  # kept, since nobody knows whether a worker fills them


def test_a_worker_that_raises_costs_the_loads_on_their_way() -> None:
    bench = Bench()
    bench.connector.matches = {"a": Matched(8, is_async=True), "b": Matched(8)}
    bench.scheduler.add_request(make_request("a", PROMPT))
    bench.scheduler.add_request(make_request("b", PROMPT))
    bench.step(TransferResults(broken=True))
    scheduled, _ = bench.step(received("a"))
    assert scheduled.num_scheduled_tokens == {"a": PROMPT, "b": PROMPT}
    bench.run()
    assert bench.num_used == 0


def test_a_producer_that_must_deliver_does_not_end_a_request_whose_blocks_are_gone() -> None:
    bench = Bench()
    bench.connector.requires_delivery = True
    bench.scheduler.add_request(make_request("a", prior_output_ids=[1, 2, 3, 4]))
    _, outputs = bench.step()
    assert outputs[0].finish_reason is FinishReason.ERROR
    assert "lost before it was handed over" in str(outputs[0].error)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_every_request_ends_and_every_block_comes_back(seed: int) -> None:
    chance = random.Random(seed)
    bench = Bench(num_blocks=chance.choice((9, 14, 30)), full_sequence_must_fit=chance.random() < 0.5)
    names = [f"r{index}" for index in range(24)]
    pending, loading, sending, ended = list(names), set[str](), set[str](), set[str]()
    for _ in range(600):
        if pending and chance.random() < 0.4:
            name = pending.pop()
            choices = (Matched(0), Matched(chance.randint(1, 12)), Matched(chance.randint(1, 12), True), Matched(None))
            bench.connector.matches[name] = chance.choice(choices)
            bench.connector.endings[name] = FinishedTransfer(defer_free=chance.random() < 0.3)
            shared = {"prompt_ids": list(range(100, 114))} if chance.random() < 0.3 else {}
            bench.scheduler.add_request(make_request(name, chance.randint(2, 14), **shared))
        for name, match in bench.connector.matches.items():
            if match.num_tokens is None and chance.random() < 0.3:
                bench.connector.matches[name] = Matched(chance.randint(0, 8), chance.random() < 0.5)
        if chance.random() < 0.1:
            aborted = bench.scheduler.finish_requests([chance.choice(names)], FinishReason.ABORT)
            ended.update(output.request_id for output in aborted)
        scheduled = bench.scheduler.schedule()
        loading |= set(bench.scheduler._transfers._loading)  # type: ignore[union-attr]
        over = {name for name in loading if chance.random() < 0.3}
        sent = {name for name in sending if chance.random() < 0.3}
        failed = tuple(name for name in over if chance.random() < 0.3)
        blocks = tuple(chance.sample(range(1, 9), 2)) if chance.random() < 0.1 else ()
        loading -= over
        sending -= sent
        report = TransferResults(
            finished_receiving=tuple(over), finished_sending=tuple(sent), failed_receiving=failed, failed_blocks=blocks
        )
        ended.update(o.request_id for o in bench.finish(scheduled, report) if o.finish_reason)
        sending |= set(bench.scheduler._transfers._sending)  # type: ignore[union-attr]
        if not pending and not bench.scheduler.has_work():
            break
    assert not bench.scheduler.has_work()
    assert ended == set(names)
    assert bench.num_used == 0
