"""Fingerprints of token prefixes.

A block's hash covers its tokens, its extra keys and the hash of the block before it, so it names the whole prefix up to
its end, and equal hashes mean equal KV. The input of the hash is a sequence of (domain, payload) fields, each preceded
by its length: no two different inputs give the same bytes, and a salt can't pass for an extension's key or for tokens.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NewType, overload

from corefw import env
from corefw.config.engine_config import HASH_ALGORITHMS
from corefw.engine.request import Request
from corefw.errors import ConfigError
from corefw.messages.request import spans_within

__all__ = [
    "ROOT_SEED",
    "SHA256",
    "BlockHash",
    "BlockHasher",
    "ExtraKey",
    "HashAlgorithm",
    "KeySource",
    "ScaledHashes",
    "cache_key",
    "hash_algorithm",
    "hash_block",
    "split_cache_key",
]

BlockHash = NewType("BlockHash", bytes)
# (domain, value): b"salt", b"embeds", b"ext:<name>", b"media" … A domain belongs to one source.
ExtraKey = tuple[bytes, bytes]
# Keys of a request that matter in its tokens [start, stop).
KeySource = Callable[[Request, int, int], Iterable[ExtraKey]]

# Fixed: a cryptographic hash needs no secret, and engines that share a cache must agree.
ROOT_SEED = b"corefw kv cache, root of all prefixes, 1"


@dataclass(frozen=True, slots=True)
class HashAlgorithm:
    """How blocks are fingerprinted.

    Attributes:
        name: as configurations spell it.
        digest: the hash of some bytes.
        root: stands before a first block; as long as a hash.
        is_reproducible: another process gives the same hashes.
    """

    name: str
    digest: Callable[[bytes], bytes]
    root: bytes
    is_reproducible: bool


def hash_algorithm(name: str) -> HashAlgorithm:
    """The algorithm of that name, seeded.

    Collisions of a hash that isn't cryptographic can be computed by whoever knows the seed, and a prompt that collides
    reads another one's KV. So there the seed is random and this process's own, unless PYTHONHASHSEED sets it.

    Raises:
        ConfigError: it is unknown, or its package isn't installed.
    """
    if name == "sha256":
        return SHA256
    if name != "xxhash":
        raise ConfigError(
            f"--prefix-caching-hash-algo {name[:40]!r} is unknown; use one of {', '.join(HASH_ALGORITHMS)}"
        )
    try:
        xxhash = importlib.import_module("xxhash")
    except ImportError as error:
        raise ConfigError(
            "--prefix-caching-hash-algo xxhash needs the package xxhash; install corefw[xxhash], or use sha256"
        ) from error
    digest: Callable[[bytes], bytes] = xxhash.xxh3_128_digest
    seed = env.python_hash_seed()
    root = digest(ROOT_SEED + (_process_secret() if seed is None else seed.encode()))
    return HashAlgorithm(name, digest, root, is_reproducible=seed is not None)


@cache
def _process_secret() -> bytes:
    return os.urandom(32)


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


SHA256 = HashAlgorithm("sha256", _sha256, _sha256(ROOT_SEED), is_reproducible=True)


def _header(domain: bytes, num_bytes: int) -> bytes:
    return struct.pack(">IQ", len(domain), num_bytes) + domain


def _field(domain: bytes, payload: bytes) -> bytes:
    return _header(domain, len(payload)) + payload


def hash_block(
    parent: bytes, token_ids: Sequence[int], extra_keys: Iterable[ExtraKey] = (), *, algorithm: HashAlgorithm = SHA256
) -> BlockHash:
    """The hash of one block.

    Args:
        parent: hash of the block before it; empty for a first one.
        token_ids: the block's tokens.
        extra_keys: what else the KV depends on; their order doesn't matter.
        algorithm: the hash.
    """
    fields = [_field(b"parent", parent or algorithm.root)]
    fields.append(_field(b"tokens", struct.pack(f"<{len(token_ids)}q", *token_ids)))
    fields.extend(_field(domain, value) for domain, value in sorted(extra_keys))
    return BlockHash(algorithm.digest(b"".join(fields)))


def cache_key(block_hash: bytes, group_id: int) -> bytes:
    """The prefix cache's key of a block of that KV-cache group: the group id follows in four bytes, no tuple."""
    return block_hash + group_id.to_bytes(4, "big")


def split_cache_key(key: bytes) -> tuple[bytes, int]:
    """Hash and group id."""
    return key[:-4], int.from_bytes(key[-4:], "big")


def _salt(request: Request, start: int, _stop: int) -> Iterable[ExtraKey]:
    # The chain carries it on: one place at the front separates everything behind it.
    if start == 0 and request.cache_salt is not None:
        yield b"salt", request.cache_salt.encode("utf-8", "surrogatepass")


def _embeds(request: Request, start: int, stop: int) -> Iterable[ExtraKey]:
    """Embeddings in a block: which of its positions they take, and their bytes.

    Only what lies inside the block counts, so prompts share what they have in common of a span.
    """
    for span, first, last in spans_within(request.prompt_embeds, start, stop):
        rows = span.values.rows(first - span.offset, last - span.offset)
        yield b"embeds", struct.pack("<QQ", first - start, last - start) + rows


class BlockHasher:
    """Extends a request's chain of block hashes as its tokens grow.

    Args:
        block_size: tokens a hash.
        algorithm: the hash.
        sources: what else than tokens, embeddings and salt the KV depends on.
    """

    def __init__(self, block_size: int, algorithm: HashAlgorithm = SHA256, sources: Sequence[KeySource] = ()) -> None:
        self.block_size = block_size
        self.algorithm = algorithm
        self._sources = tuple(sources)
        self._before_parent = _header(b"parent", len(algorithm.root))
        self._before_tokens = _header(b"tokens", 8 * block_size)

    def extend(self, request: Request) -> None:
        """Hash the full blocks of the request's tokens that aren't hashed yet."""
        hashes, size = request.block_hashes, self.block_size
        begin, end = len(hashes) * size, request.num_tokens // size * size
        if begin == end:
            return
        digest, sources = self.algorithm.digest, self._sources_of(request)
        parent = hashes[-1] if hashes else self.algorithm.root
        # As hash_block does it, with all tokens packed at once.
        packed, width = struct.pack(f"<{end - begin}q", *request.token_ids[begin:end]), 8 * size
        before_parent, before_tokens = self._before_parent, self._before_tokens
        for start in range(begin, end, size):
            first = 8 * (start - begin)
            fields = before_parent + parent + before_tokens + packed[first : first + width]
            if sources:
                keys = sorted(key for source in sources for key in source(request, start, start + size))
                fields = b"".join((fields, *(_field(domain, value) for domain, value in keys)))
            parent = digest(fields)
            hashes.append(parent)

    def _sources_of(self, request: Request) -> tuple[KeySource, ...]:
        """Without the built-in ones where the request has neither salt nor embeddings."""
        if request.cache_salt is None and not request.prompt_embeds:
            return self._sources
        return (_salt, _embeds, *self._sources)


class ScaledHashes(Sequence[bytes]):
    """The hashes of blocks ``scale`` hash blocks long: a chained hash of a block's last part covers all of it."""

    def __init__(self, hashes: Sequence[bytes], scale: int) -> None:
        self._hashes = hashes
        self._scale = scale

    def __len__(self) -> int:
        return len(self._hashes) // self._scale

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._hashes[(index % len(self) + 1) * self._scale - 1]
