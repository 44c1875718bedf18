"""A request as plugins of the KV cache see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corefw.engine.kv_cache.manager import KVCacheManager
    from corefw.engine.request import Request
    from corefw.messages.request import PlainDict

__all__ = ["HashedRequest", "RequestView"]


class HashedRequest:
    """A view for what is asked while the request's blocks are being hashed: it has the hashes made so far."""

    __slots__ = ("_request",)

    def __init__(self, request: Request) -> None:
        self._request = request

    @property
    def request_id(self) -> str:
        return self._request.request_id

    @property
    def token_ids(self) -> Sequence[int]:
        return self._request.token_ids

    @property
    def num_prompt_tokens(self) -> int:
        return self._request.num_prompt_tokens

    @property
    def num_computed_tokens(self) -> int:
        return self._request.num_computed_tokens

    @property
    def priority(self) -> int:
        return self._request.priority

    @property
    def cache_salt(self) -> str | None:
        return self._request.cache_salt

    @property
    def extra(self) -> PlainDict:
        return self._request.extra

    @property
    def block_hashes(self) -> Sequence[bytes]:
        return self._request.block_hashes

    @property
    def block_ids(self) -> Sequence[Sequence[int]]:
        return ()


class RequestView(HashedRequest):
    """A view whose hashes are made when they are asked for."""

    __slots__ = ("_kv",)

    def __init__(self, request: Request, kv: KVCacheManager) -> None:
        super().__init__(request)
        self._kv = kv

    @property
    def block_hashes(self) -> Sequence[bytes]:
        self._kv.extend_hashes(self._request)
        return self._request.block_hashes

    @property
    def block_ids(self) -> Sequence[Sequence[int]]:
        return self._kv.block_ids(self._request)
