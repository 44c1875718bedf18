"""Hooks of the KV cache: who keeps blocks, what their hashes depend on, which one is reused, what failed loads do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol

from corefw.interfaces.hooks.marker import hookspec

if TYPE_CHECKING:
    from corefw.interfaces.kv_connector import KVRequest
    from corefw.messages.kv_events import BlockRemoved, BlockStored
    from corefw.messages.outputs import FinishReason

__all__ = [
    "BlockLease",
    "BlockLessor",
    "EvictionPolicy",
    "HashKeys",
    "KVEventSubscriber",
    "LoadFailurePolicy",
    "ReusableBlock",
    "corefw_kv_block_lessor",
    "corefw_kv_event_subscriber",
    "corefw_kv_eviction_policy",
    "corefw_kv_hash_keys",
    "corefw_kv_load_failure_policy",
]


class BlockLease(Protocol):
    """Blocks of a request that ended, kept from being reused."""

    @property
    def request_id(self) -> str: ...
    @property
    def block_ids(self) -> Sequence[int]:
        """Each once, whatever its group."""
        ...

    def give_back(self) -> None:
        """Let the blocks go, from any thread; they are free with the next step. Twice does nothing."""
        ...


class BlockLessor(ABC):
    """Keeps blocks of requests that end. All leases of an engine together hold at most half of the KV cache."""

    @abstractmethod
    def lease_s(self, request: KVRequest, reason: FinishReason) -> float | None:
        """Say for how many seconds the blocks of a request that ends are wanted at most; None: not at all.

        More than 600 seconds are cut to that.
        """

    @abstractmethod
    def granted(self, lease: BlockLease) -> None:
        """Take a lease, right after it was asked for. It ends when it is given back, or when its time is over."""

    def expired(self, request_id: str) -> None:
        """Note that a lease's time is over: its blocks are free."""
        del request_id


class HashKeys(ABC):
    """Adds keys to the hashes of KV blocks: what else than tokens and salt their contents depend on.

    Attributes:
        domain: the plugin's own; keys of other domains are never mistaken for its keys.
    """

    domain: ClassVar[str]

    @abstractmethod
    def keys(self, request: KVRequest, start: int, stop: int) -> Iterable[bytes]:
        """Keys that matter in the block of tokens ``start`` to ``stop``; those of earlier blocks count on.

        Where this raises, the request shares none of its blocks from there on.
        """


class ReusableBlock(NamedTuple):
    """A free block whose contents can still be found.

    Attributes:
        block_id: of the pool.
        block_hash: names its contents.
        group: its KV-cache group.
    """

    block_id: int
    block_hash: bytes
    group: int


class EvictionPolicy(ABC):
    """Chooses which cached block that nobody uses is taken for something else, when no empty one is left."""

    @abstractmethod
    def added(self, block: ReusableBlock) -> None:
        """Note that nobody uses the block any more; it may be chosen from now on."""

    @abstractmethod
    def removed(self, block_id: int) -> None:
        """Note that a block can't be chosen any more: somebody uses it, or it was chosen."""

    @abstractmethod
    def choose(self) -> int:
        """Id of the block to reuse, one of those that can be chosen; any other answer counts as a failure."""

    def cleared(self) -> None:
        """Note that nothing is cached any more; no block can be chosen."""


class LoadFailurePolicy(ABC):
    """Decides what becomes of requests whose KV could not be loaded."""

    @abstractmethod
    def decide(self, request: KVRequest, num_lost_tokens: int) -> Literal["recompute", "fail"] | None:
        """``recompute`` what is missing, ``fail`` the request, or None for what ``--kv-load-failure-policy`` says."""


class KVEventSubscriber:
    """Told in the engine core what the prefix cache does, as it happens. Must be quick."""

    def stored(self, event: BlockStored) -> None:
        """Note that a block's contents can be found from now on."""

    def removed(self, event: BlockRemoved) -> None:
        """Note that contents can't be found any more."""

    def cleared(self) -> None:
        """Note that nothing can be found any more."""


@hookspec
def corefw_kv_block_lessor() -> BlockLessor | None:
    """Keep the blocks of requests that end. Called once in the engine core's process when its scheduler is made.

    Returns:
        what is asked whenever a request ends that held blocks.
    """


@hookspec
def corefw_kv_hash_keys() -> HashKeys | None:
    """Add keys to block hashes, in a domain of one's own. Called once in the engine core's process, when its scheduler
    is made; not where prefix caching is off.

    Returns:
        what is asked for each block's keys when its hash is made. Two of one domain are an error.
    """


@hookspec
def corefw_kv_eviction_policy() -> EvictionPolicy | None:
    """Choose which cached block is reused. Called once in the engine core's process when its scheduler is made.

    Returns:
        the policy in place of the default (the one unused for longest). Two of them are an error.
    """


@hookspec
def corefw_kv_load_failure_policy() -> LoadFailurePolicy | None:
    """Decide what failed loads of a KV connector do. Called once in the engine core's process, when its scheduler is
    made; only with a connector.

    Returns:
        what is asked a failed load. The first one that answers counts.
    """


@hookspec
def corefw_kv_event_subscriber() -> KVEventSubscriber | None:
    """Follow what the prefix cache stores and forgets. Called once in the engine core's process when its scheduler is
    made, whether or not ``--kv-events`` is given.

    Returns:
        what is told each event.
    """
