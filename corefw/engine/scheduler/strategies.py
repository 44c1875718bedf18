"""The four decisions that strategies make: chosen once, and guarded where a plugin makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from corefw.config.engine_config import SchedulerConfig
from corefw.errors import ConfigError, PluginError
from corefw.interfaces.scheduler import Admission, ChunkBudget, QueueOrder, RequestView, VictimChoice
from corefw.interfaces.selection import Rejected, Selection
from corefw.observability.logging import get_logger
from corefw.plugin_system.contributions import Contribution, Guarded
from corefw.plugin_system.discovery import CORE_DISTRIBUTION
from corefw.plugin_system.starting import starting

if TYPE_CHECKING:
    from corefw.plugin_system.manager import PluginManager

__all__ = ["Strategies", "choose_strategies"]

_GROUP = "scheduler_strategies"
_DEFAULT = "fcfs"
# By option: the decision, the method that makes it.
_DECISIONS: dict[str, tuple[type[Any], str]] = {
    "scheduling_order": (QueueOrder, "queue_key"),
    "scheduling_victim": (VictimChoice, "victim"),
    "scheduling_admission": (Admission, "may_admit"),
    "scheduling_chunks": (ChunkBudget, "chunk_tokens"),
}

_log = get_logger(__name__)


def _first_come(_request: RequestView) -> tuple[float, ...]:
    return ()


def _latest(running: Sequence[RequestView]) -> int:
    return len(running) - 1


def _always(_request: RequestView, _num_running: int) -> str | None:
    return None


def _all_that_fits(_request: RequestView, num_new_tokens: int, token_budget: int) -> int:
    return min(num_new_tokens, token_budget)


@dataclass(slots=True)
class Strategies:
    """The decisions as the scheduler calls them; they never raise, and what they answer makes sense.

    Attributes:
        on_order_lost: called once when the queue's order isn't asked any more: keys made before then mean nothing.
    """

    queue_key: Callable[[RequestView], tuple[float, ...]] = _first_come
    victim: Callable[[Sequence[RequestView]], int] = _latest
    may_admit: Callable[[RequestView, int], str | None] = _always
    chunk_tokens: Callable[[RequestView, int, int], int] = _all_that_fits
    on_order_lost: list[Callable[[], None]] = field(default_factory=list)


def choose_strategies(limits: SchedulerConfig, plugins: PluginManager) -> Strategies:
    """Make the strategies that the options name, and record who decides what.

    Raises:
        ConfigError: a strategy doesn't make the decision that it is named for.
        PluginError: there is no such strategy, or it can't be made.
    """
    made: dict[str, Any] = {}
    chosen = Strategies()
    for option, (kind, method) in _DECISIONS.items():
        named = getattr(limits, option)
        setting = f"--{(option if named else 'scheduling_policy').replace('_', '-')}"
        name = named or limits.scheduling_policy
        if name not in made:
            made[name] = _make(name, setting, plugins)
        decides = isinstance(made[name], kind)
        if named and not decides:
            raise ConfigError(f"{setting} {name[:80]!r} can't be: that strategy is no {kind.__name__}")
        _record(option, name if decides else _DEFAULT, setting, f"{name} is no {kind.__name__}", decides, plugins)
        if decides:
            chosen = _with_decision(chosen, method, made[name], name, plugins)
    return chosen


def _make(name: str, setting: str, plugins: PluginManager) -> Any:
    strategy = plugins.get(_GROUP, name, setting=setting)
    with starting(plugins, _GROUP, name):
        return strategy()


def _record(option: str, chosen: str, setting: str, why_not: str, decides: bool, plugins: PluginManager) -> None:
    what = f"scheduling policy ({option.removeprefix('scheduling_')})"
    reason = f"the value of {setting}" if decides else f"the default: {why_not}"
    others = [name for name in plugins.names(_GROUP) if name != chosen]
    selection = Selection(what, chosen, reason, tuple(Rejected(other, "not asked for") for other in others))
    plugins.record(selection)
    _log.info("%s: %s (%s)", what, chosen, reason)


def _with_decision(chosen: Strategies, method: str, maker: Any, name: str, plugins: PluginManager) -> Strategies:
    distribution = next(
        (plugin.distribution for plugin in plugins.resolved() if (plugin.group, plugin.name) == (_GROUP, name)),
        "unknown",
    )
    if distribution == CORE_DISTRIBUTION:
        return replace(chosen, **{method: getattr(maker, method)})
    guard = plugins.guard(Contribution(name, distribution, method, maker))
    decisions: dict[str, Callable[[Guarded[Any]], Any]] = {
        "queue_key": partial(_guarded_key, on_lost=chosen.on_order_lost),
        "victim": _guarded_victim,
        "may_admit": _guarded_admission,
        "chunk_tokens": _guarded_chunk,
    }
    return replace(chosen, **{method: decisions[method](guard)})


def _guarded_key(
    guard: Guarded[QueueOrder], on_lost: list[Callable[[], None]]
) -> Callable[[RequestView], tuple[float, ...]]:
    def checked(request: RequestView) -> tuple[float, ...]:
        key = guard.value.queue_key(request)
        parts_compare = isinstance(key, tuple) and all(isinstance(part, int | float) and part == part for part in key)
        return key if parts_compare else _refuse(f"key {key!r}", "a tuple of numbers without NaN")

    def queue_key(request: RequestView) -> tuple[float, ...]:
        key = guard.run(checked, request)
        while guard.quarantined is not None and on_lost:
            on_lost.pop()()
        return _first_come(request) if key is None else key

    return queue_key


def _guarded_victim(guard: Guarded[VictimChoice]) -> Callable[[Sequence[RequestView]], int]:
    def checked(running: Sequence[RequestView]) -> int:
        index = guard.value.victim(running)
        is_one = type(index) is int and 0 <= index < len(running)
        return index if is_one else _refuse(f"victim {index!r}", f"an index of {len(running)} requests")

    def victim(running: Sequence[RequestView]) -> int:
        index = guard.run(checked, tuple(running))
        return _latest(running) if index is None else index

    return victim


def _guarded_admission(guard: Guarded[Admission]) -> Callable[[RequestView, int], str | None]:
    def checked(request: RequestView, num_running: int) -> str | None:
        reason: object = guard.value.may_admit(request, num_running)
        if reason is None or isinstance(reason, str):
            return reason
        return _refuse(f"answer {reason!r}", "a reason or None")

    def may_admit(request: RequestView, num_running: int) -> str | None:
        return guard.run(checked, request, num_running)

    return may_admit


def _guarded_chunk(guard: Guarded[ChunkBudget]) -> Callable[[RequestView, int, int], int]:
    def checked(request: RequestView, num_new_tokens: int, token_budget: int) -> int:
        tokens = guard.value.chunk_tokens(request, num_new_tokens, token_budget)
        is_share = type(tokens) is int and tokens > 0
        return tokens if is_share else _refuse(f"chunk of {tokens!r} tokens", "a whole number above 0")

    def chunk_tokens(request: RequestView, num_new_tokens: int, token_budget: int) -> int:
        tokens = guard.run(checked, request, num_new_tokens, token_budget)
        return _all_that_fits(request, num_new_tokens, token_budget) if tokens is None else tokens

    return chunk_tokens


def _refuse(what: str, accepted: str) -> NoReturn:
    raise PluginError(f"it gave the {what[:200]}; that has to be {accepted}")
