"""KV connector: moves KV blocks between this engine and other engines or stores.

Two halves. The scheduler's lives in the engine core, knows no tensors and decides what is loaded, stored and handed
over; the workers' lives beside each rank's cache and moves bytes. The scheduler's half speaks to the other one by a
piece of plain data a step (``build_metadata``), and is answered by ``TransferResults``.

The order of calls. When the engine starts: ``worker``, ``register_caches``, ``handshake`` on each rank, then
``scheduler`` and ``receive_handshakes``. For a request: ``matched_tokens`` (maybe often), ``after_alloc`` once it gets
its blocks, ``request_finished``. In a step: ``build_metadata``; then on the worker ``start_load``, for each layer
``wait_layer`` before its attention and ``save_layer`` after it, ``wait_save``, ``results``; then ``update``. A step may
compute nothing and only serve transfers: it has no layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from corefw.config.connector_options import typed_options

if TYPE_CHECKING:
    import torch

    from corefw.config.engine_config import EngineConfig
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.messages.kv_transfer import TransferResults
    from corefw.messages.outputs import FinishReason
    from corefw.messages.request import PlainDict
    from corefw.messages.scheduling import SchedulerOutput

__all__ = [
    "NOTHING_LEFT_TO_SEND",
    "ConnectorSetup",
    "FinishedTransfer",
    "KVCaches",
    "KVConnector",
    "KVRequest",
    "KVRole",
    "LayerCache",
    "Matched",
    "SchedulerConnector",
    "WorkerConnector",
    "connector_setup",
]


class KVRole(StrEnum):
    """What this engine does with its KV: hand it over, take it, or both."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    BOTH = "both"

    @property
    def produces(self) -> bool:
        """Whether KV is to be sent or stored."""
        return self is not KVRole.CONSUMER

    @property
    def consumes(self) -> bool:
        """Whether KV is to be loaded."""
        return self is not KVRole.PRODUCER


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectorSetup:
    """What a half is made from.

    Attributes:
        config: the engine's.
        plan: sizes; ``layer_groups`` names the layers of each KV-cache group.
        role: as ``--kv-role`` says.
        options: what ``--kv-connector-config`` says: an instance of the connector's ``options_type``, or a mapping
            where it has none.
        block_sizes: tokens a block, by KV-cache group.
        rank: of the worker's half; 0 for the scheduler's.
        num_ranks: workers in all.
    """

    config: EngineConfig
    plan: RuntimePlan
    role: KVRole
    options: object
    block_sizes: tuple[int, ...]
    rank: int = 0
    num_ranks: int = 1


class KVRequest(Protocol):
    """A request as plugins of the KV cache see it. It is live: ask again later, and it tells what is true then."""

    @property
    def request_id(self) -> str: ...
    @property
    def token_ids(self) -> Sequence[int]:
        """Prompt, then outputs."""
        ...

    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_computed_tokens(self) -> int:
        """Leading tokens whose KV lies in its blocks."""
        ...

    @property
    def priority(self) -> int: ...
    @property
    def cache_salt(self) -> str | None: ...
    @property
    def extra(self) -> PlainDict:
        """Plain data that came with the request."""
        ...

    @property
    def block_hashes(self) -> Sequence[bytes]:
        """Chained hashes of the full hash blocks (``RuntimePlan.block_size`` tokens each) of its tokens.

        Each covers all tokens before it and whatever else the KV depends on. Empty without prefix caching.
        """
        ...

    @property
    def block_ids(self) -> Sequence[Sequence[int]]:
        """Its blocks in token order, one list a KV-cache group; 0 stands where no block is needed any more."""
        ...


class Matched(NamedTuple):
    """What ``matched_tokens`` found.

    Attributes:
        num_tokens: tokens behind the local ones that can really be loaded; None: not known yet, ask in a later step.
            The request waits then and others go on.
        is_async: load while other requests compute; the request waits until the worker reports it. Otherwise it is
            loaded within the step in which the request starts.
    """

    num_tokens: int | None
    is_async: bool = False


class FinishedTransfer(NamedTuple):
    """The answer to ``request_finished``.

    Attributes:
        defer_free: keep the blocks until the worker reports the request among ``finished_sending``.
        params: plain data for the client, as ``kv_transfer_params`` in the request's last output.
    """

    defer_free: bool = False
    params: PlainDict | None = None


NOTHING_LEFT_TO_SEND = FinishedTransfer()


class SchedulerConnector(ABC):
    """The half in the engine core. Used by one thread; nothing here may block.

    Attributes:
        requires_delivery: what this half hands over must arrive, so a request that can't hand over its KV must not
            end as if it had. A cache that only loses a hit leaves this False.
    """

    requires_delivery: bool = False

    def receive_handshakes(self, handshakes: Sequence[PlainDict | None]) -> None:
        """Take what ``WorkerConnector.handshake`` of each rank returned, in rank order, before the first request."""
        del handshakes

    @abstractmethod
    def matched_tokens(self, request: KVRequest, num_local_tokens: int) -> Matched:
        """Say how many tokens behind the local ones can be loaded. No promise yet: may be asked again, or never used.

        Args:
            request: it waits; it holds no blocks.
            num_local_tokens: leading tokens that the engine's own prefix cache has.
        """

    @abstractmethod
    def after_alloc(self, request: KVRequest, num_local_tokens: int, num_external_tokens: int) -> None:
        """Note that the request got its blocks. Whether to load is decided by ``num_external_tokens`` alone.

        Args:
            request: its ``block_ids`` have room for all these tokens.
            num_local_tokens: leading tokens whose KV is there.
            num_external_tokens: tokens behind them that have to be loaded, at most what was matched; the engine counts
                on it. 0: nothing.
        """

    @abstractmethod
    def build_metadata(self, scheduled: SchedulerOutput) -> PlainDict:
        """Say what the workers have to do in this step. What it names must be done or reported as failed."""

    def update(self, results: TransferResults) -> None:
        """Take what all ranks together came to: an id is here once, when the last rank had reported it."""
        del results

    def request_finished(self, request: KVRequest, reason: FinishReason) -> FinishedTransfer:
        """Note that a request has ended, for whatever reason, and say what becomes of its blocks.

        Called once for every request of which this half was asked, also for one that never got blocks.
        """
        del request, reason
        return NOTHING_LEFT_TO_SEND

    def cache_reset(self) -> None:
        """Note that the operator emptied the prefix cache, since its contents are no longer right."""

    def shutdown(self) -> None:
        """Stop. May be called twice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerCache:
    """One layer's part of the cache.

    Attributes:
        group: its KV-cache group.
        pages: uint8 [num_blocks, page_bytes]; a block id is an index.
        block_stride_bytes: from one block's page to the next one's; not always what a page has.
    """

    group: int
    pages: torch.Tensor
    block_stride_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KVCaches:
    """A rank's cache as raw pages.

    Attributes:
        layers: by layer name, in layer order. Layers of different groups may share memory.
        fingerprint: of everything that decides what bytes a page has for given tokens: the model's weights and
            configuration, dtypes, the attention backend's layout, block sizes, rank. Pages of equal fingerprints can
            be exchanged.
    """

    layers: Mapping[str, LayerCache] = field(repr=False)
    fingerprint: str


class WorkerConnector(ABC):
    """The half beside one rank's cache. Used by the worker's thread; may use threads of its own.

    A page may be read or written only: within a step, between ``start_load`` and the end of ``wait_save``, where the
    metadata named it; by an asynchronous load, until the request is reported among ``finished_receiving``; by a
    sending, until it is reported among ``finished_sending``.
    """

    @abstractmethod
    def register_caches(self, caches: KVCaches) -> None:
        """Take the cache's memory. Called once, before anything else."""

    def handshake(self) -> PlainDict | None:
        """Plain data for the scheduler's half, once, before the first step."""
        return None

    @abstractmethod
    def start_load(self, metadata: PlainDict) -> None:
        """Begin a step: start its loads, remember what to save."""

    def wait_layer(self, layer: str) -> None:
        """Return when this step's loads of the layer are done or have failed."""
        del layer

    def save_layer(self, layer: str) -> None:
        """Take what the metadata wants of the layer, whose attention has just written its pages."""
        del layer

    def wait_save(self) -> None:
        """Return when nothing reads or writes pages on behalf of this step any more, asynchronous loads aside."""

    @abstractmethod
    def results(self) -> TransferResults | None:
        """What was finished since the last call; each id once. Must not block. None: nothing."""

    def shutdown(self) -> None:
        """Stop. May be called twice."""


class KVConnector(ABC):
    """A way of moving KV (group ``corefw.kv_connectors``), chosen by ``--kv-connector``. It makes the two halves.

    Attributes:
        options_type: dataclass or msgspec struct of ``--kv-connector-config``; None takes any mapping.
    """

    name: ClassVar[str]
    api_version: ClassVar[int] = 1
    options_type: ClassVar[type | None] = None

    @classmethod
    @abstractmethod
    def scheduler(cls, setup: ConnectorSetup) -> SchedulerConnector:
        """Make the half in the engine core. Raises ConfigError where it can't serve this engine."""

    @classmethod
    @abstractmethod
    def worker(cls, setup: ConnectorSetup) -> WorkerConnector:
        """Make the half of one rank; only here torch may be imported."""


def connector_setup(
    connector: type[KVConnector], config: EngineConfig, plan: RuntimePlan, block_sizes: Sequence[int], rank: int = 0
) -> ConnectorSetup:
    """What a half of ``connector`` is made from.

    Raises:
        ConfigError: ``--kv-connector-config`` isn't what the connector takes.
    """
    settings = config.kv_transfer
    return ConnectorSetup(
        config=config,
        plan=plan,
        role=KVRole(settings.kv_role),
        options=typed_options(settings.kv_connector_config, connector.options_type),
        block_sizes=tuple(block_sizes),
        rank=rank,
        num_ranks=config.parallel.grid.replica_size,
    )
