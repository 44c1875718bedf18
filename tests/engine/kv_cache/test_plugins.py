"""What plugins of the KV cache may do wrong without anybody else noticing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, cast

import pytest

from corefw.engine.kv_cache.eviction import PolicyQueue
from corefw.engine.kv_cache.hashing import BlockHasher
from corefw.engine.kv_cache.leases import Leases
from corefw.engine.kv_cache.plugins import CachePlugins, collect_cache_plugins
from corefw.engine.kv_cache.pool import BlockPool
from corefw.engine.request import Request
from corefw.errors import PluginError
from corefw.interfaces.hooks.kv import (
    BlockLease,
    BlockLessor,
    EvictionPolicy,
    HashKeys,
    KVEventSubscriber,
    ReusableBlock,
)
from corefw.interfaces.kv_connector import KVRequest
from corefw.messages.kv_events import BlockRemoved, BlockStored
from corefw.messages.outputs import FinishReason
from corefw.plugin_system.contributions import MAX_FAILURES, Contribution, Guarded
from corefw.plugin_system.manager import PluginManager
from tests.engine.scheduler.setup import BLOCK_SIZE, make_request

PROMPT_IDS = list(range(2 * BLOCK_SIZE))


class Contributing:
    """Plugins, each with one contribution."""

    def __init__(self, *values: object) -> None:
        self._values = values
        self.guards: list[Guarded[Any]] = []

    def collect(self, kind: type, hook: Callable[..., Any], *_args: object) -> tuple[Contribution[Any], ...]:
        found = [value for value in self._values if isinstance(value, kind)]
        return tuple(Contribution(f"p{index}", "dist", hook.__name__, value) for index, value in enumerate(found))

    def guard(self, contribution: Contribution[Any]) -> Guarded[Any]:
        self.guards.append(Guarded(contribution))
        return self.guards[-1]


def collected(*values: object) -> CachePlugins:
    return collect_cache_plugins(cast(PluginManager, Contributing(*values)), prefix_caching=True)


class Keys(HashKeys):
    """Answers what the test wants."""

    domain: ClassVar[str] = "mine"

    def __init__(self, answer: Callable[[], object]) -> None:
        self._answer = answer

    def keys(self, request: KVRequest, start: int, stop: int) -> Iterable[bytes]:
        return cast(Iterable[bytes], self._answer())


def hashes_with(answer: Callable[[], object], request_id: str = "a") -> list[bytes]:
    request = Request(make_request(request_id, prompt_ids=PROMPT_IDS))
    BlockHasher(BLOCK_SIZE, sources=collected(Keys(answer)).key_sources).extend(request)
    return request.block_hashes


def fail() -> object:
    raise ValueError("told to fail")


@pytest.mark.parametrize("answer", [lambda: b"ab", lambda: "ab", lambda: [1, 2], lambda: ["ab"], lambda: None, fail])
def test_blocks_whose_keys_are_nonsense_are_shared_with_nobody_not_even_under_the_same_id(
    answer: Callable[[], object],
) -> None:
    assert set(hashes_with(answer)).isdisjoint(hashes_with(answer))
    assert set(hashes_with(answer)).isdisjoint(hashes_with(list))


def test_blocks_with_the_same_keys_are_shared_whoever_asks() -> None:
    assert hashes_with(lambda: [b"ab"]) == hashes_with(lambda: iter([b"ab"]), "b")
    assert set(hashes_with(lambda: [b"ab"])).isdisjoint(hashes_with(lambda: [b"ba"]))


@pytest.mark.parametrize("domain", [None, "", 7])
def test_hash_keys_without_a_domain_stop_the_start_and_name_their_plugin(domain: object) -> None:
    keys = Keys(list)
    keys.domain = domain  # type: ignore[misc, assignment]
    with pytest.raises(PluginError, match="dist/p0 brings hash keys without a domain"):
        collected(keys)


class WrongChoice(EvictionPolicy):
    """Everything works but the choice."""

    num_asked = 0

    def added(self, block: ReusableBlock) -> None: ...
    def removed(self, block_id: int) -> None: ...
    def choose(self) -> int:
        self.num_asked += 1
        return 0


def test_a_policy_that_never_chooses_a_free_block_is_not_asked_any_more() -> None:
    policy = WrongChoice()
    eviction = collected(policy).eviction
    assert eviction is not None
    pool = BlockPool(4, make_queue=lambda blocks: PolicyQueue(blocks, eviction))
    for round_ in range(6):
        blocks = pool.allocate(3)
        for block in blocks:
            pool.cache(block, bytes([round_, block.block_id]) + bytes(4))
        pool.free(blocks[::-1])
    assert policy.num_asked == MAX_FAILURES
    assert pool.num_free_blocks == 3


class Deaf(KVEventSubscriber):
    """Hears what is stored and fails over what is removed."""

    num_failures = 0

    def stored(self, event: BlockStored) -> None: ...
    def removed(self, event: BlockRemoved) -> None:
        self.num_failures += 1
        raise ValueError("told to fail")


def test_a_subscriber_that_fails_over_one_kind_of_events_is_not_told_any_more() -> None:
    subscriber = Deaf()
    (tell,) = collected(subscriber).listeners
    for _ in range(5):
        tell(BlockStored(block_hash=b"a", parent_hash=None, token_ids=[1], group=0))
        tell(BlockRemoved(block_hash=b"a", group=0))
    assert subscriber.num_failures == MAX_FAILURES


class Hoarder(BlockLessor):
    """Wants everything and fails when it gets it."""

    def __init__(self) -> None:
        self.leases: list[BlockLease] = []

    def lease_s(self, request: KVRequest, reason: FinishReason) -> float | None:
        return 5.0

    def granted(self, lease: BlockLease) -> None:
        self.leases.append(lease)
        raise ValueError("told to fail")


def test_a_lessor_that_fails_over_its_leases_gets_no_more_and_its_blocks_come_back() -> None:
    lessor, now = Hoarder(), [0.0]
    pool = BlockPool(100)
    leases = Leases(collected(lessor).lessors, pool, clock=lambda: now[0])
    request = Request(make_request("a"))
    for _ in range(5):
        blocks = pool.allocate(2)
        leases.offer(cast(KVRequest, request), FinishReason.STOP, blocks)
        pool.free(blocks)
    assert len(lessor.leases) == MAX_FAILURES
    assert pool.num_used_blocks == 2 * MAX_FAILURES
    now[0] = 5.0
    leases.return_due()
    assert pool.num_used_blocks == 0
