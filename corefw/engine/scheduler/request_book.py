"""The requests of a scheduler: how they come, wait and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corefw.config.engine_config import EngineConfig
from corefw.config.runtime_plan import RuntimePlan
from corefw.engine.kv_cache.events import KVEventRecorder
from corefw.engine.kv_cache.hashing import BlockHasher, KeySource, hash_algorithm
from corefw.engine.kv_cache.leases import Leases
from corefw.engine.kv_cache.manager import KVCacheManager
from corefw.engine.kv_cache.plugins import collect_cache_plugins
from corefw.engine.kv_cache.request_view import RequestView
from corefw.engine.kv_cache.specs import SpecRegistry
from corefw.engine.kv_transfer.transfers import make_transfers
from corefw.engine.request import Request, RequestStatus
from corefw.engine.scheduler.blocking import BlockedRequests, Blocker
from corefw.engine.scheduler.counters import Counters
from corefw.engine.scheduler.embeds import check_embeds
from corefw.engine.scheduler.in_flight import StepsInFlight
from corefw.engine.scheduler.intake import check_request
from corefw.engine.scheduler.news import news_of
from corefw.engine.scheduler.observers import observers_of
from corefw.engine.scheduler.stopping import Stop, check_stop
from corefw.engine.scheduler.strategies import choose_strategies
from corefw.engine.scheduler.waiting import WaitingQueue
from corefw.errors import EngineError, RequestError
from corefw.interfaces.kv_cache import KVCacheSpec
from corefw.interfaces.scheduler import Scheduler
from corefw.messages.kv_events import KVEventBatch
from corefw.messages.outputs import EngineCoreOutput, ErrorKind, FinishReason, SchedulerStats
from corefw.messages.request import EngineCoreRequest, PlainDict
from corefw.observability.logging import get_logger

if TYPE_CHECKING:
    from corefw.plugin_system.manager import PluginManager

__all__ = ["NO_EXTRA", "RequestBook"]

NO_EXTRA: PlainDict = {}
_NOT_DELIVERED = "the KV cache of this request was lost before it was handed over; send it again"

_log = get_logger(__name__)


class RequestBook(Scheduler):
    """Requests from their arrival to their end, with their blocks; a subclass schedules them.

    A request is in exactly one of ``_waiting``, ``_blocked`` and ``_running``; ``_requests`` has them all.
    """

    def __init__(
        self,
        config: EngineConfig,
        plan: RuntimePlan,
        group_specs: Sequence[KVCacheSpec],
        plugins: PluginManager,
    ) -> None:
        self._config = config
        self._limits = config.scheduler
        self._max_model_len = plan.max_model_len
        self._vocab_size = config.model_info.vocab_size
        self._strategy = choose_strategies(config.scheduler, plugins)
        self._max_in_flight = config.max_batches_in_flight
        self._is_async = bool(config.scheduler.async_scheduling)
        self._num_stages = config.parallel.pipeline_parallel_size
        self._max_active = config.scheduler.max_num_active_seqs or config.scheduler.max_num_seqs
        self._events = KVEventRecorder() if config.cache.kv_events else None
        extensions = collect_cache_plugins(plugins, prefix_caching=config.cache.enable_prefix_caching)
        self._kv = KVCacheManager(
            group_specs,
            SpecRegistry.from_plugins(plugins),
            plan.num_blocks,
            _make_hasher(config, plan.block_size, extensions.key_sources),
            max_step_tokens=config.max_in_flight_tokens,
            listeners=(*((self._events,) if self._events else ()), *extensions.listeners),
            eviction=extensions.eviction,
        )
        self._in_flight = StepsInFlight(self._kv.pool)
        self._leases = Leases(extensions.lessors, self._kv.pool) if extensions.lessors else None
        self._transfers = make_transfers(config, plan, [spec.block_size for spec in group_specs], self._kv, plugins)
        self._num_watermark_blocks = int(config.scheduler.watermark * (plan.num_blocks - 1))
        self._num_groups = len(group_specs)
        self._requests: dict[str, Request] = {}
        self._waiting = WaitingQueue(self._strategy)
        self._strategy.on_order_lost.append(self._waiting.reorder)
        self._observers = observers_of(config, plugins)
        self._blocked = BlockedRequests()
        self._running: list[Request] = []
        self._any_ended = False
        # For the worker with the next step, and for the front end with the next update.
        self._finished_ids: list[str] = []
        self._pending_outputs: list[EngineCoreOutput] = []
        self._step = 0
        # Steps up to this one were launched before a failure was known.
        self._last_doubtful_step = 0
        self._counters = Counters()

    # Requests come and go.

    def add_request(self, request: EngineCoreRequest) -> None:
        check_request(request, self._limits, self._max_model_len, self._vocab_size)
        check_embeds(request, self._config)
        pending_ids = (output.request_id for output in self._pending_outputs)
        is_transferred = self._transfers is not None and self._transfers.holds(request.request_id)
        if is_transferred or request.request_id in self._requests or request.request_id in pending_ids:
            raise RequestError(f"request id {request.request_id[:80]!r} is in use; ids must be unique")
        added = Request(request)
        added.length_limit = min(added.length_limit, self._max_model_len)
        self._requests[added.request_id] = added
        self._waiting.add(added)
        stop = check_stop(added, self._max_model_len) if request.prior_output_ids else None
        if stop:
            # Whoever had it before died between its last token and its end.
            self._pending_outputs.append(self._finish_unrun(added, stop))

    def _finish_unrun(self, request: Request, stop: Stop) -> EngineCoreOutput:
        if self._transfers is not None and self._transfers.requires_delivery:
            return self._finish(request, FinishReason.ERROR, error=_NOT_DELIVERED, kind=ErrorKind.CAPACITY)
        return self._finish(request, stop.reason, stop_reason=stop.token_id)

    def finish_requests(self, request_ids: Sequence[str], reason: FinishReason) -> list[EngineCoreOutput]:
        unique_ids = dict.fromkeys(request_ids)
        known = [self._requests[request_id] for request_id in unique_ids if request_id in self._requests]
        outputs = [self._finish(request, reason) for request in known]
        self._drop_ended()
        return outputs

    def block(self, request_id: str, blocker: Blocker) -> None:
        """Set a waiting request aside until its blocker is ready; it then takes its old place in the queue.

        Raises:
            EngineError: the request is unknown or doesn't wait.
        """
        request = self._requests.get(request_id)
        if request is None:
            raise EngineError(f"request {request_id[:80]!r} can't be blocked: it is unknown")
        self._set_aside(request, blocker)

    def _set_aside(self, request: Request, blocker: Blocker) -> None:
        request.move_to(RequestStatus.BLOCKED)
        self._waiting.remove(request)
        self._blocked.add(request, blocker)

    def blocked_reasons(self) -> dict[str, str]:
        """By id of each blocked request, what it waits for."""
        return self._blocked.reasons()

    # Ends.

    def _finish(
        self,
        request: Request,
        reason: FinishReason,
        *,
        stop_reason: int | None = None,
        error: str | None = None,
        kind: ErrorKind = ErrorKind.ENGINE,
    ) -> EngineCoreOutput:
        """End a request without a token; returns its terminal output."""
        extra = self._end(request, reason)
        return news_of(
            request, [], finish_reason=reason, stop_reason=stop_reason, error=error, error_kind=kind, extra=extra
        )

    def _end(self, request: Request, reason: FinishReason) -> PlainDict:
        """End a request; returns what its last output carries. A running one stays in ``_running`` until
        ``_drop_ended``."""
        if request in self._waiting:
            self._waiting.remove(request)
        elif request in self._blocked:
            self._blocked.remove(request)
        request.move_to(RequestStatus.finished(reason))
        extra = self._transfers.ended(request, reason) if self._transfers is not None else NO_EXTRA
        if self._leases is not None and request.num_slots:
            self._leases.offer(RequestView(request, self._kv), reason, self._kv.held_blocks(request))
        self._free(request)
        self._any_ended = True
        del self._requests[request.request_id]
        self._finished_ids.append(request.request_id)
        return extra

    def _free(self, request: Request) -> None:
        """Take a running request's blocks from it; what is in flight of it is stale."""
        if request.num_in_flight_tokens:
            self._in_flight.leave(request, self._kv.held_blocks(request))
            request.num_in_flight_tokens = request.num_placeholders = 0
        self._kv.free(request)

    def _fail_alone(self, request: Request) -> None:
        """End a request that has the whole pool to itself and still not enough."""
        num_blocks = len(self._kv.pool.blocks) - 1
        error = f"a sequence of {request.num_tokens} tokens needs more than the {num_blocks} blocks of the KV cache"
        self._pending_outputs.append(self._finish(request, FinishReason.ERROR, error=error))

    def _drop_ended(self) -> None:
        if self._any_ended:
            self._running = [request for request in self._running if request.status is RequestStatus.RUNNING]
            self._any_ended = False

    def _take_pending(self) -> list[EngineCoreOutput]:
        outputs, self._pending_outputs = self._pending_outputs, []
        return outputs

    # State.

    def has_work(self) -> bool:
        queued = self._running or self._waiting or self._finished_ids or self._pending_outputs
        transferring = self._transfers is not None and self._transfers.in_progress
        return bool(queued) or transferring or self._blocked.any_ready()

    def stats(self) -> SchedulerStats:
        num_waiting = len(self._waiting) + len(self._blocked)
        return self._counters.stats(len(self._running), num_waiting, self._kv.pool.usage)

    def reset_prefix_cache(self) -> bool:
        if self._leases:  # an idle engine makes no step in which they would end
            self._leases.return_due()
        done = self._kv.reset_prefix_cache()
        if done and self._transfers is not None:
            self._transfers.cache_reset()
        return done

    def receive_handshakes(self, handshakes: Sequence[PlainDict | None]) -> None:
        if self._transfers is not None:
            self._transfers.receive_handshakes(handshakes)

    def shutdown(self) -> None:
        if self._transfers is not None:
            self._transfers.shutdown()

    def take_kv_events(self) -> KVEventBatch | None:
        return self._events.take() if self._events else None


def _make_hasher(config: EngineConfig, block_size: int, sources: Sequence[KeySource]) -> BlockHasher | None:
    if not config.cache.enable_prefix_caching:
        return None
    algorithm = hash_algorithm(config.cache.prefix_caching_hash_algo)
    if config.cache.kv_events and not algorithm.is_reproducible:
        _log.warning(
            "KV events carry hashes that no other process can make: %s has a random seed here; set PYTHONHASHSEED to "
            "the same number everywhere, or use --prefix-caching-hash-algo sha256",
            algorithm.name,
        )
    return BlockHasher(block_size, algorithm, sources)
