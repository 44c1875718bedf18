from __future__ import annotations

from corefw.builtins.schedulers.default import DefaultScheduler
from corefw.builtins.schedulers.fcfs import FirstComeFirstServed
from corefw.engine.request import Request
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from corefw.plugin_system.manager import PluginManager


def make_request(name: str, priority: int = 0) -> Request:
    params = SamplingParams(max_tokens=1)
    return Request(EngineCoreRequest(request_id=name, prompt_ids=[1], params=params, priority=priority))


def test_neither_priority_nor_clock_changes_the_order() -> None:
    strategy = FirstComeFirstServed()
    assert strategy.queue_key(make_request("a", priority=5)) == strategy.queue_key(make_request("b"))


def test_the_latest_admission_is_the_victim() -> None:
    running = [make_request(name) for name in "abc"]
    assert FirstComeFirstServed().victim(running) == 2


def test_a_request_gets_what_the_budget_has() -> None:
    strategy, request = FirstComeFirstServed(), make_request("a")
    assert strategy.chunk_tokens(request, 10, 4) == 4
    assert strategy.chunk_tokens(request, 3, 4) == 3


def test_scheduler_and_strategy_come_in_through_their_groups() -> None:
    plugins = PluginManager.discover()
    assert plugins.get("scheduler_strategies", "fcfs") is FirstComeFirstServed
    assert plugins.get("schedulers", "default") is DefaultScheduler
