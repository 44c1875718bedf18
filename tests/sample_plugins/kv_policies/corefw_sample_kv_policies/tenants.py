"""Keeps tenants' prefixes apart: ``{"kv_tenants": {"tenant": …}}`` in a request's ``extra`` goes into its hashes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from corefw.interfaces.hooks.kv import HashKeys
from corefw.interfaces.kv_connector import KVRequest
from corefw.sdk.plugins import hookimpl


class Tenants(HashKeys):
    """A key in the first block separates all that follow."""

    domain: ClassVar[str] = "tenant"

    def keys(self, request: KVRequest, start: int, stop: int) -> Iterable[bytes]:
        del stop
        tenant = request.extra.get("kv_tenants", {}).get("tenant")
        return [str(tenant).encode()] if start == 0 and tenant is not None else []


@hookimpl
def corefw_kv_hash_keys() -> HashKeys:
    return Tenants()
