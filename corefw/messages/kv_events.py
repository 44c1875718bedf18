"""What the prefix cache did, for whoever keeps a picture of it: a router, a shared cache."""

from __future__ import annotations

import msgspec

__all__ = ["BlockRemoved", "BlockStored", "CacheCleared", "KVEvent", "KVEventBatch"]


class BlockStored(msgspec.Struct, frozen=True, kw_only=True, tag="stored"):
    """A block's contents can be found from now on.

    Attributes:
        block_hash: names the tokens up to the block's end and all else that its KV depends on.
        parent_hash: of the block before it; None for a first one.
        token_ids: the block's own tokens.
        group: KV-cache group.
    """

    block_hash: bytes
    parent_hash: bytes | None
    token_ids: list[int]
    group: int


class BlockRemoved(msgspec.Struct, frozen=True, kw_only=True, tag="removed"):
    """The last block with these contents was taken for something else."""

    block_hash: bytes
    group: int


class CacheCleared(msgspec.Struct, frozen=True, kw_only=True, tag="cleared"):
    """Nothing is cached any more, in any group."""


KVEvent = BlockStored | BlockRemoved | CacheCleared


class KVEventBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Events in their order.

    Attributes:
        first: number of the first event; they count up from 0. More than the reader expects: it has missed some, since
            only so many are kept, and has to start afresh.
        events: each only once, whoever asks.
    """

    first: int
    events: list[KVEvent]
