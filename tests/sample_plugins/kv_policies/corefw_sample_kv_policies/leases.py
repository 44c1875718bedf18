"""Keeps the blocks of requests with the extension ``{"kv_leases": {"keep_s": …}}`` until that time is over, or until
the next request of the same conversation has ended."""

from __future__ import annotations

from corefw.interfaces.hooks.kv import BlockLease, BlockLessor
from corefw.interfaces.hooks.lifecycle import RequestExtension
from corefw.interfaces.kv_connector import KVRequest
from corefw.messages.outputs import FinishReason
from corefw.sdk.plugins import hookimpl


class Conversations(BlockLessor):
    """One lease a conversation, the newest."""

    def __init__(self) -> None:
        self._leases: dict[str, BlockLease] = {}
        self._asked: dict[str, str] = {}

    def lease_s(self, request: KVRequest, reason: FinishReason) -> float | None:
        wish = request.extra.get("kv_leases", {})
        if reason is FinishReason.ERROR or "keep_s" not in wish:
            return None
        self._asked[request.request_id] = wish.get("conversation", request.request_id)
        return float(wish["keep_s"])

    def granted(self, lease: BlockLease) -> None:
        conversation = self._asked.pop(lease.request_id)
        former = self._leases.pop(conversation, None)
        if former is not None:
            former.give_back()
        self._leases[conversation] = lease

    def expired(self, request_id: str) -> None:
        self._leases = {name: lease for name, lease in self._leases.items() if lease.request_id != request_id}


@hookimpl
def corefw_kv_block_lessor() -> BlockLessor:
    return Conversations()


@hookimpl
def corefw_request_extension() -> RequestExtension:
    return RequestExtension()
