"""Each decision of the scheduler can be replaced alone, and none that fails hurts anybody."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from corefw.builtins.schedulers.fcfs import FirstComeFirstServed
from corefw.builtins.schedulers.priority import Priority
from corefw.config.engine_config import ResolvedPlugin, SchedulerConfig
from corefw.engine.request import Request
from corefw.engine.scheduler.strategies import Strategies, choose_strategies
from corefw.engine.scheduler.waiting import WaitingQueue
from corefw.errors import ConfigError, PluginError
from corefw.interfaces.scheduler import Admission, ChunkBudget, QueueOrder, RequestView, VictimChoice
from corefw.interfaces.selection import Selection
from corefw.plugin_system.contributions import MAX_FAILURES, Contribution, Guarded
from tests.engine.scheduler.setup import make_request


class ShortestFirst(QueueOrder):
    name = "shortest"

    def queue_key(self, request: RequestView) -> tuple[float, ...]:
        return (request.num_tokens,)


class Oldest(VictimChoice):
    name = "oldest"

    def victim(self, running: Sequence[RequestView]) -> int:
        return 0


@dataclass
class Answering(QueueOrder, VictimChoice, Admission, ChunkBudget):
    """Decides whatever it is told to."""

    answer: Any = None
    num_asked: int = 0
    name = "answering"

    def _say(self) -> Any:
        self.num_asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def queue_key(self, request: RequestView) -> tuple[float, ...]:
        return self._say()

    def victim(self, running: Sequence[RequestView]) -> int:
        if isinstance(running, list):
            running.clear()
        return self._say()

    def may_admit(self, request: RequestView, num_running: int) -> str | None:
        return self._say()

    def chunk_tokens(self, request: RequestView, num_new_tokens: int, token_budget: int) -> int:
        return self._say()


class Plugins:
    """Strategies in memory, with the face of the manager that is used for them."""

    def __init__(self, **strategies: Any) -> None:
        self._strategies = {"fcfs": FirstComeFirstServed, "priority": Priority, **strategies}
        self.selections: dict[str, Selection] = {}
        self.guards: list[Guarded[Any]] = []
        self.verdicts = ()

    def get(self, group: str, name: str, *, setting: str) -> Any:
        if name not in self._strategies:
            raise PluginError(f"there is no {name}, asked for by {setting}")
        return self._strategies[name]

    def found(self, group: str, name: str) -> None:
        """By metadata: nothing."""

    def names(self, group: str) -> tuple[str, ...]:
        return tuple(self._strategies)

    def resolved(self) -> tuple[ResolvedPlugin, ...]:
        return tuple(
            ResolvedPlugin(
                group="scheduler_strategies",
                name=name,
                value="v",
                distribution="corefw" if name in ("fcfs", "priority") else "theirs",
                version="1",
            )
            for name in self._strategies
        )

    def record(self, selection: Selection) -> None:
        self.selections[selection.what] = selection

    def guard(self, contribution: Contribution[Any]) -> Guarded[Any]:
        self.guards.append(Guarded(contribution))
        return self.guards[-1]


def choose(plugins: Plugins, **limits: Any) -> Strategies:
    return choose_strategies(SchedulerConfig(**limits), plugins)  # type: ignore[arg-type]


def requests(*lengths: int) -> list[Request]:
    return [Request(make_request(chr(97 + index), length)) for index, length in enumerate(lengths)]


def answering(answer: Any) -> tuple[Strategies, Answering, Plugins]:
    maker = Answering(answer)
    plugins = Plugins(answering=lambda: maker)
    return choose(plugins, scheduling_policy="answering"), maker, plugins


def test_each_decision_is_replaced_alone_and_recorded() -> None:
    plugins = Plugins(shortest=ShortestFirst, oldest=Oldest)
    chosen = choose(plugins, scheduling_policy="priority", scheduling_order="shortest", scheduling_victim="oldest")
    short, long = requests(3, 9)
    assert chosen.queue_key(long) == (9,)
    assert chosen.victim([long, short]) == 0
    assert chosen.may_admit(short, 5) is None
    assert chosen.chunk_tokens(long, 9, 4) == 4
    assert {what: (item.chosen, item.reason) for what, item in plugins.selections.items()} == {
        "scheduling policy (order)": ("shortest", "the value of --scheduling-order"),
        "scheduling policy (victim)": ("oldest", "the value of --scheduling-victim"),
        "scheduling policy (admission)": ("priority", "the value of --scheduling-policy"),
        "scheduling policy (chunks)": ("priority", "the value of --scheduling-policy"),
    }


def test_a_policy_that_makes_one_decision_leaves_the_others_to_the_default() -> None:
    plugins = Plugins(shortest=ShortestFirst)
    chosen = choose(plugins, scheduling_policy="shortest")
    assert chosen.queue_key(requests(7)[0]) == (7,)
    assert chosen.victim(requests(1, 2, 3)) == 2
    victim = plugins.selections["scheduling policy (victim)"]
    assert (victim.chosen, victim.reason) == ("fcfs", "the default: shortest is no VictimChoice")


def test_what_the_core_ships_is_called_without_a_guard() -> None:
    plugins = Plugins()
    chosen = choose(plugins, scheduling_policy="priority")
    assert chosen.queue_key.__func__ is Priority.queue_key  # type: ignore[attr-defined]
    assert plugins.guards == []


def test_a_strategy_named_for_what_it_does_not_decide_is_refused() -> None:
    with pytest.raises(ConfigError, match="--scheduling-victim 'shortest' can't be: that strategy is no VictimChoice"):
        choose(Plugins(shortest=ShortestFirst), scheduling_victim="shortest")


def test_an_unknown_strategy_is_refused_with_its_option() -> None:
    with pytest.raises(PluginError, match="asked for by --scheduling-chunks"):
        choose(Plugins(), scheduling_chunks="nowhere")


def test_a_strategy_that_cannot_be_made_stops_the_start_with_its_name() -> None:
    with pytest.raises(PluginError, match=r"'needy' \(scheduler_strategies\) failed at its start: TypeError"):
        choose(Plugins(needy=lambda _: None), scheduling_order="needy")


@pytest.mark.parametrize("key", [(math.nan,), [1.0], None, ("a",), ValueError("no")])
def test_a_senseless_key_is_the_defaults(key: Any) -> None:
    chosen, _, _ = answering(key)
    assert chosen.queue_key(requests(3)[0]) == ()


@pytest.mark.parametrize("index", [-1, 2, None, 0.0, True, ValueError("no")])
def test_a_senseless_victim_is_the_defaults(index: Any) -> None:
    chosen, _, _ = answering(index)
    running = requests(3, 4)
    assert chosen.victim(running) == 1
    assert len(running) == 2


@pytest.mark.parametrize("answer", [False, 0, ValueError("no")])
def test_a_senseless_admission_is_an_admission(answer: Any) -> None:
    chosen, _, _ = answering(answer)
    assert chosen.may_admit(requests(3)[0], 1) is None


@pytest.mark.parametrize("tokens", [0, -1, 2.0, math.nan, True, None, ValueError("no")])
def test_a_senseless_chunk_is_the_defaults(tokens: Any) -> None:
    chosen, _, _ = answering(tokens)
    assert chosen.chunk_tokens(requests(9)[0], 9, 5) == 5


def test_a_strategy_that_keeps_failing_is_logged_by_name_and_not_asked_any_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    chosen, maker, plugins = answering(0)
    with caplog.at_level(logging.WARNING):
        for _ in range(MAX_FAILURES + 4):
            chosen.chunk_tokens(requests(9)[0], 9, 5)
    assert maker.num_asked == MAX_FAILURES
    assert "plugin theirs/answering (chunk_tokens)" in caplog.text
    assert [guard.quarantined is not None for guard in plugins.guards] == [False, False, False, True]


def test_a_lost_order_leaves_nobody_behind_those_that_come_later() -> None:
    chosen, maker, _ = answering((5.0,))
    queue = WaitingQueue(chosen)
    chosen.on_order_lost.append(queue.reorder)
    waiting = requests(1, 2, 3, 4, 5)
    queue.add(waiting[0])
    maker.answer = ValueError("no")
    for request in waiting[1:]:
        queue.add(request)
    order = []
    while (first := queue.peek()) is not None:
        order.append(first.request_id)
        queue.remove(first)
    assert order == ["a", "b", "c", "d", "e"]
