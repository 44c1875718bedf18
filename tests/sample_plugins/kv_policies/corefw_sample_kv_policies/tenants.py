"""Keeps tenants' prefixes apart: the extension ``{"kv_tenants": {"tenant": …}}`` goes into a request's hashes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from corefw.interfaces.hooks.kv import HashKeys
from corefw.interfaces.hooks.lifecycle import RequestExtension
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


@hookimpl
def corefw_request_extension() -> RequestExtension:
    return RequestExtension()
