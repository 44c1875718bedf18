"""What the scheduler knows of KV transfers, and the only place where it speaks to the connector.

A request's external tokens are looked up when it could be admitted. They are loaded within its first step, or while it
waits, blocked, with its blocks. Blocks that a transfer may still touch have a reference of their own: they are free
only when the workers have reported that transfer, whatever has become of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from itertools import chain
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import msgspec

from corefw.engine.kv_cache.block import KVCacheBlock
from corefw.engine.kv_cache.manager import KVCacheManager, PrefixHit
from corefw.engine.kv_cache.request_view import RequestView
from corefw.engine.kv_transfer.answers import ask_end, ask_match, ask_metadata
from corefw.engine.kv_transfer.failures import FailureRule
from corefw.engine.kv_transfer.loads import Load
from corefw.engine.kv_transfer.ranks import RankAggregator
from corefw.engine.request import Request
from corefw.interfaces.kv_connector import NOTHING_LEFT_TO_SEND, Matched, SchedulerConnector, connector_setup
from corefw.messages.kv_transfer import TransferResults
from corefw.observability.logging import get_logger
from corefw.plugin_system.contributions import MAX_FAILURES
from corefw.plugin_system.failure_log import FailureLog
from corefw.plugin_system.making import made_by_plugin, whose
from corefw.plugin_system.selection import by_name

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.interfaces.kv_connector import KVConnector
    from corefw.messages.outputs import FinishReason
    from corefw.messages.request import PlainDict
    from corefw.messages.scheduling import SchedulerOutput
    from corefw.plugin_system.manager import PluginManager

__all__ = ["ASK_AGAIN", "KVTransfers", "make_transfers"]

P = ParamSpec("P")
R = TypeVar("R")

_NO_PARAMS: PlainDict = {}
_GROUP, _SETTING = "kv_connectors", "--kv-connector"

_log = get_logger(__name__)


class _AskAgain:
    """A connector doesn't know yet; it is asked in every step."""

    reason = "the KV connector doesn't know yet what it can load"

    def ready(self) -> bool:
        return True


ASK_AGAIN = _AskAgain()


class KVTransfers:
    """Loads and deferred frees of one engine.

    Args:
        connector: its scheduler half. What it raises costs the request its transfer, never the engine its loop.
        kv: the blocks.
        block_sizes: by KV-cache group.
        num_ranks: workers that report.
        rule: what failed loads do.
    """

    def __init__(
        self,
        connector: SchedulerConnector,
        kv: KVCacheManager,
        block_sizes: Sequence[int],
        num_ranks: int,
        rule: FailureRule,
    ) -> None:
        self._connector = connector
        self._name = type(connector).__name__
        self._failures = FailureLog(f"KV connector {self._name}", _log)
        # Steps in a row that broke asynchronous loads.
        self._num_broken = 0
        self._kv = kv
        self._block_sizes = tuple(block_sizes)
        self._ranks = RankAggregator(num_ranks)
        self._rule = rule
        self._views: dict[str, RequestView] = {}
        self._in_step: dict[str, Load] = {}
        self._loading: dict[str, Load] = {}
        # Filled, and waiting for admission.
        self._loaded: dict[str, Request] = {}
        # Blocks of requests that ended while something still wrote to them, or reads them.
        self._abandoned: dict[str, list[KVCacheBlock]] = {}
        self._sending: dict[str, list[KVCacheBlock]] = {}
        self._forgone: set[str] = set()
        self._asynchronous: set[str] = set()

    # Admission.

    def look_up(self, request: Request, hit: PrefixHit) -> PrefixHit | None:
        """The hit with what can be loaded behind it; None: not known yet."""
        request_id = request.request_id
        if request.num_computed_tokens or request_id in self._forgone or not request.reads_prefix_cache:
            return hit
        if self._num_broken >= MAX_FAILURES:  # a load that breaks may keep its blocks for ever
            return hit
        nothing = Matched(0)
        matched = self._ask(nothing, ask_match, self._connector, self._view(request), hit.num_tokens)
        if matched.num_tokens is None:
            return None
        # At least one token is computed, or there would be nothing to sample from.
        num_external = min(matched.num_tokens, request.num_tokens - 1 - hit.num_tokens)
        if num_external <= 0:
            return hit
        if matched.is_async:
            self._asynchronous.add(request_id)
        else:
            self._asynchronous.discard(request_id)
        return replace(hit, num_external=num_external)

    def waits_for(self, request: Request, hit: PrefixHit) -> bool:
        """Whether the request is to wait while its external tokens are loaded."""
        return bool(hit.num_external) and not request.num_computed_tokens and request.request_id in self._asynchronous

    def begin_waiting(self, request: Request, hit: PrefixHit) -> Load:
        """Start an asynchronous load into the request's blocks; returns what it waits for."""
        load = self._loading[request.request_id] = self._begin(request, hit)
        return load

    def started(self, request: Request, hit: PrefixHit) -> None:
        """Note that a request runs from this step on; what is external and not there yet is loaded within the step."""
        request_id = request.request_id
        if self._loaded.pop(request_id, None) is None:
            load = self._begin(request, hit)
            if hit.num_external:
                self._in_step[request_id] = load

    def _begin(self, request: Request, hit: PrefixHit) -> Load:
        start, stop = hit.num_tokens, hit.num_computed_tokens
        load = Load(request, start, stop, self._kv.block_ids(request), self._block_sizes)
        view = self._view(request)
        if not self._ask(False, _always_true(self._connector.after_alloc), view, start, stop - start):
            load.lose_all()
        return load

    def forgo(self, request: Request) -> None:
        """Load nothing for this request: the cache can't hold what it takes to load it."""
        self._forgone.add(request.request_id)

    # A step.

    def with_metadata(self, scheduled: SchedulerOutput) -> SchedulerOutput:
        """The step, with what the connector tells its workers."""
        metadata = self._ask(None, ask_metadata, self._connector, scheduled)
        if metadata is None:
            self._lose_all()
            return scheduled
        return msgspec.structs.replace(scheduled, kv_transfer=metadata)

    def take(self, reports: Iterable[TransferResults]) -> list[Load]:
        """Take what the workers report; returns the loads that failed, whose requests the caller restarts or ends.

        Requests whose load succeeded can go on: their blocker is ready.
        """
        results = self._ranks.add(reports)
        failed = frozenset(results.failed_receiving)
        lost_blocks = frozenset(results.failed_blocks)
        if lost_blocks:
            for load in chain(self._in_step.values(), self._loading.values()):
                load.lose(lost_blocks)
        if results.broken:
            self._lose_all()
        lost = [load for load in self._in_step.values() if load.failed]
        self._in_step.clear()
        for request_id in results.finished_receiving:
            arrived = self._loading.pop(request_id, None)
            if arrived is None:
                self._let_go(self._abandoned, request_id)
                continue
            if request_id in failed:
                arrived.lose_all()
            if arrived.failed:
                lost.append(arrived)
            else:
                self._complete(arrived)
        lost += self._give_up_broken()
        for request_id in results.finished_sending:
            self._let_go(self._sending, request_id)
        self._forgone.update(load.request.request_id for load in lost)
        self._ask(None, self._connector.update, results)
        return lost

    def _lose_all(self) -> None:
        for load in chain(self._in_step.values(), self._loading.values()):
            load.lose_all()

    def _complete(self, load: Load) -> None:
        request = load.request
        request.num_computed_tokens = load.stop
        self._kv.cache_blocks(request)
        self._loaded[request.request_id] = request
        load.done = True
        self._num_broken = 0

    def _give_up_broken(self) -> list[Load]:
        """Asynchronous loads that the connector itself dropped. Whether a worker has begun one isn't known."""
        broken = [load for load in self._loading.values() if load.failed and load.stop == load.start]
        for load in broken:
            del self._loading[load.request.request_id]
            self._keep(self._abandoned, load.request)
        if broken:
            self._num_broken += 1
            if self._num_broken == MAX_FAILURES:
                _log.error("KV connector %s isn't asked for loads any more: they keep breaking", self._name)
        return broken

    def recomputes(self, load: Load) -> bool:
        """Whether a failed load's request is computed instead of failed."""
        request = load.request
        return self._rule.recomputes(self._view(request), request.num_tokens - load.stop)

    # Ends.

    def ended(self, request: Request, reason: FinishReason) -> PlainDict:
        """Note that a request ends, before its blocks are freed; returns what its last output carries."""
        request_id = request.request_id
        self._loaded.pop(request_id, None)
        self._in_step.pop(request_id, None)
        self._forgone.discard(request_id)
        self._asynchronous.discard(request_id)
        if self._loading.pop(request_id, None) is not None:
            self._keep(self._abandoned, request)
        view = self._views.pop(request_id, None)
        if view is None:
            return _NO_PARAMS
        finished = self._ask(NOTHING_LEFT_TO_SEND, ask_end, self._connector, view, reason)
        if finished.defer_free:
            self._keep(self._sending, request)
        return _NO_PARAMS if finished.params is None else {"kv_transfer_params": finished.params}

    def give_back_loaded(self) -> Request | None:
        """The request loaded last that isn't admitted yet; the caller takes its blocks from it."""
        if not self._loaded:
            return None
        return self._loaded.popitem()[1]

    # State.

    @property
    def requires_delivery(self) -> bool:
        """Whether a request that ends must have had KV to hand over."""
        return self._connector.requires_delivery

    @property
    def in_progress(self) -> bool:
        """Whether the workers will report something."""
        return bool(self._loading or self._abandoned or self._sending)

    def holds(self, request_id: str) -> bool:
        """Whether an id that has ended is still in transfers."""
        return request_id in self._abandoned or request_id in self._sending

    def holders(self) -> Iterator[Request]:
        """Requests that have blocks and don't run."""
        yield from (load.request for load in self._loading.values())
        yield from self._loaded.values()

    def receive_handshakes(self, handshakes: Sequence[PlainDict | None]) -> None:
        """Tell the connector what its workers say at the start.

        Raises:
            PluginError: it can't go on from there.
        """
        what = f"KV connector {self._name}"
        made_by_plugin(what, type(None), self._connector.receive_handshakes, handshakes)

    def cache_reset(self) -> None:
        """Tell the connector that the prefix cache was emptied."""
        self._ask(None, self._connector.cache_reset)

    def shutdown(self) -> None:
        """Stop the connector."""
        self._ask(None, self._connector.shutdown)

    def _view(self, request: Request) -> RequestView:
        view = self._views.get(request.request_id)
        if view is None:
            view = self._views[request.request_id] = RequestView(request, self._kv)
        return view

    def _keep(self, where: dict[str, list[KVCacheBlock]], request: Request) -> None:
        blocks = self._kv.held_blocks(request)
        self._kv.pool.touch(blocks)
        where.setdefault(request.request_id, []).extend(blocks)

    def _let_go(self, where: dict[str, list[KVCacheBlock]], request_id: str) -> None:
        blocks = where.pop(request_id, None)
        if blocks is None:
            _log.debug("the KV connector reported request %s, which has no transfer", request_id)
            return
        self._kv.pool.free(blocks[::-1])

    def _ask(self, default: R, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        method = getattr(call, "__name__", "a call")
        try:
            answer = call(*args, **kwargs)
        except (Exception, SystemExit) as error:  # the plugin border: requests go on without their transfers
            self._failures.failed(method, error)
            return default
        self._failures.worked(method)
        return answer


def _always_true(call: Callable[P, None]) -> Callable[P, bool]:
    """The call as one that says that it came back."""

    @wraps(call)
    def told(*args: P.args, **kwargs: P.kwargs) -> bool:
        call(*args, **kwargs)
        return True

    return told


def make_transfers(
    config: EngineConfig, plan: RuntimePlan, block_sizes: Sequence[int], kv: KVCacheManager, plugins: PluginManager
) -> KVTransfers | None:
    """The scheduler's side of the configured connector; None without one.

    Raises:
        ConfigError, PluginError: the connector can't be had, or can't serve this engine.
    """
    settings = config.kv_transfer
    if settings.kv_connector is None:
        return None
    name = settings.kv_connector
    connector: type[KVConnector] = plugins.get(_GROUP, name, setting=_SETTING)
    setup = connector_setup(connector, config, plan, block_sizes)
    rule = FailureRule.collect(settings.kv_load_failure_policy, plugins)
    half = made_by_plugin(whose(plugins, _GROUP, name), SchedulerConnector, connector.scheduler, setup)
    plugins.record(by_name("KV connector", name, plugins.names(_GROUP), _SETTING))
    return KVTransfers(half, kv, block_sizes, setup.num_ranks, rule)
