from __future__ import annotations

import msgspec

from corefw.engine.clients.merged_answers import merged_result, merged_stats
from corefw.messages.outputs import SchedulerStats, UtilityResult


def answers(*values: object) -> list[UtilityResult]:
    return [UtilityResult(call_id=3, value=value) for value in values]


def test_figures_are_summed_and_kv_use_is_the_mean() -> None:
    one = SchedulerStats(num_running=1, kv_usage=0.5, num_steps=4, step_token_counts=(1, 2))
    two = SchedulerStats(num_running=2, num_waiting=3, num_preemptions=1, step_token_counts=())
    merged = merged_stats([one, two])
    assert (merged.num_running, merged.num_waiting, merged.num_preemptions, merged.num_steps) == (3, 3, 1, 4)
    assert merged.kv_usage == 0.25
    assert merged.step_token_counts == (1, 2)
    assert merged.engines == (one, two)


def test_the_core_s_own_calls_answer_as_one_engine_would() -> None:
    assert merged_result("reset_prefix_cache", answers(True, False)).value is False
    assert merged_result("set_log_level", answers(None, None)).value is None
    stats = [msgspec.to_builtins(SchedulerStats(num_running=n)) for n in (1, 2)]
    assert merged_result("stats", answers(*stats)).value["num_running"] == 3
    quarantined = [{"quarantined": ["a"], "process": "core"}, {"quarantined": ["a", "b"], "process": "core"}]
    assert merged_result("plugins", answers(*quarantined)).value == {"quarantined": ["a", "b"], "process": "core"}


def test_what_a_plugin_offers_answers_a_list_with_one_value_an_engine() -> None:
    assert merged_result("a.b", answers({"x": 1}, None)).value == [{"x": 1}, None]


def test_one_failure_is_the_answer() -> None:
    failed = UtilityResult(call_id=3, error="no")
    assert merged_result("a.b", [*answers(1), failed, *answers(2)]) is failed
