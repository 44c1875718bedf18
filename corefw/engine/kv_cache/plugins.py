"""What plugins contribute to the KV cache, collected when a scheduler is made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from corefw.engine.kv_cache.hashing import ExtraKey, KeySource
from corefw.engine.kv_cache.pool import KVEventListener
from corefw.engine.kv_cache.request_view import HashedRequest
from corefw.errors import PluginError
from corefw.interfaces.hooks import kv as hooks
from corefw.interfaces.hooks.kv import BlockLessor, EvictionPolicy, HashKeys, KVEventSubscriber
from corefw.messages.kv_events import BlockRemoved, BlockStored, KVEvent
from corefw.plugin_system.contributions import Contribution, Guarded
from corefw.plugin_system.observers import ObserverCalls

if TYPE_CHECKING:
    from corefw.engine.request import Request
    from corefw.plugin_system.manager import PluginManager

__all__ = ["CachePlugins", "collect_cache_plugins"]

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class CachePlugins:
    """Empty where there are none.

    Attributes:
        lessors: keep blocks of requests that end.
        eviction: chooses which cached block is reused.
        key_sources: add to block hashes.
        listeners: follow the prefix cache.
    """

    lessors: tuple[ObserverCalls[BlockLessor], ...] = ()
    eviction: ObserverCalls[EvictionPolicy] | None = None
    key_sources: tuple[KeySource, ...] = ()
    listeners: tuple[KVEventListener, ...] = ()


def collect_cache_plugins(plugins: PluginManager, *, prefix_caching: bool) -> CachePlugins:
    """Call the hooks.

    Raises:
        PluginError: two plugins contribute what there can be only one of.
    """
    lessors = plugins.collect(BlockLessor, hooks.corefw_kv_block_lessor)
    policies = plugins.collect(EvictionPolicy, hooks.corefw_kv_eviction_policy)
    subscribers = plugins.collect(KVEventSubscriber, hooks.corefw_kv_event_subscriber)
    keys = plugins.collect(HashKeys, hooks.corefw_kv_hash_keys) if prefix_caching else ()
    _refuse_two("an eviction policy", policies, lambda _: "")
    _refuse_two("hash keys", keys, _domain)
    return CachePlugins(
        lessors=tuple(ObserverCalls(lessor, BlockLessor, plugins.guard) for lessor in lessors),
        eviction=ObserverCalls(policies[0], EvictionPolicy, plugins.guard) if policies else None,
        key_sources=tuple(_key_source(plugins.guard(source)) for source in keys),
        listeners=tuple(_listener(ObserverCalls(one, KVEventSubscriber, plugins.guard)) for one in subscribers),
    )


def _refuse_two(what: str, contributions: Sequence[Contribution[_T]], key: Callable[[Contribution[_T]], str]) -> None:
    owners: dict[str, str] = {}
    for contribution in contributions:
        other = owners.setdefault(key(contribution), contribution.owner)
        if other != contribution.owner:
            raise PluginError(
                f"plugins {other} and {contribution.owner} both bring {what}; leave one out with --plugins -NAME"
            )


def _domain(contribution: Contribution[HashKeys]) -> str:
    domain = getattr(contribution.value, "domain", None)
    if not isinstance(domain, str) or not domain:
        raise PluginError(
            f"plugin {contribution.owner} brings hash keys without a domain; set domain to a text of its own"
        )
    return domain


def _key_source(guarded: Guarded[HashKeys]) -> KeySource:
    domain = b"ext:" + guarded.value.domain.encode("utf-8", "surrogatepass")

    def keys(request: Request, start: int, stop: int) -> Iterable[ExtraKey]:
        found = guarded.run(_asked_keys, guarded.value, HashedRequest(request), start, stop)
        if found is None:
            # Nobody knows what the block depends on, so nobody else may find it, nor a later request of the same id.
            return [(b"unknown:" + domain, os.urandom(16))]
        return [(domain, key) for key in found]

    return keys


def _asked_keys(source: HashKeys, request: HashedRequest, start: int, stop: int) -> list[bytes]:
    found = source.keys(request, start, stop)
    # bytes are an iterable of numbers, and bytes(5) are five zeros: keys that say nothing of what they were made from.
    if isinstance(found, bytes | bytearray | memoryview | str):
        raise TypeError(f"keys returned {type(found).__name__}; it takes an iterable of bytes")
    keys = list(found)
    if not all(isinstance(key, bytes) for key in keys):
        raise TypeError("keys returned something that isn't bytes")
    return keys


def _listener(subscriber: ObserverCalls[KVEventSubscriber]) -> KVEventListener:
    def tell(event: KVEvent) -> None:
        if isinstance(event, BlockStored):
            subscriber.run("stored", event)
        elif isinstance(event, BlockRemoved):
            subscriber.run("removed", event)
        else:
            subscriber.run("cleared")

    return tell
