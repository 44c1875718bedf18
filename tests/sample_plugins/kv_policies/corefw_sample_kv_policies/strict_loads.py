"""Fails requests that lost much of their KV, so that a retry elsewhere isn't slower than computing it here."""

from __future__ import annotations

from typing import Literal

from corefw.interfaces.hooks.kv import LoadFailurePolicy
from corefw.interfaces.kv_connector import KVRequest
from corefw.sdk.plugins import hookimpl

MAX_RECOMPUTED_TOKENS = 32


class StrictLoads(LoadFailurePolicy):
    """By the number of tokens that would have to be computed again."""

    def decide(self, request: KVRequest, num_lost_tokens: int) -> Literal["recompute", "fail"]:
        del request
        return "recompute" if num_lost_tokens <= MAX_RECOMPUTED_TOKENS else "fail"


@hookimpl
def corefw_kv_load_failure_policy() -> LoadFailurePolicy:
    return StrictLoads()
