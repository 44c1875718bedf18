"""The pack's section of the configuration."""

from __future__ import annotations

from typing import Annotated

import msgspec

from corefw.interfaces.hooks.marker import hookimpl

__all__ = ["Multimodal"]

_Count = Annotated[int, msgspec.Meta(ge=1)]


class Multimodal(msgspec.Struct, frozen=True, kw_only=True):
    """What clients may have fetched and decoded.

    Attributes:
        allowed_media_domains: hosts that media may be fetched from: ``example.com``, ``*.example.com`` (what is below
            it), ``example.com:8443`` (another port), ``*`` (any host). Empty: nothing is fetched.
        private_hosts: hosts of your own, with port, whose addresses may be private: ``media.internal:80``.
        allowed_local_media_path: directory below which ``file://`` is read; empty for none.
        max_item_bytes: of a file, as fetched or sent.
        max_pixels: of an image.
        fetch_timeout_s: from the first connection to the last byte, redirects included.
        max_redirects: in a row.
        max_total_bytes: of all requests together: files, and images while they are decoded and encoded.
        max_kept_bytes: of items that clients gave an id (``uuid``) and that are kept for later requests; 0 for none.
    """

    allowed_media_domains: list[str] = []
    private_hosts: list[str] = []
    allowed_local_media_path: str = ""
    max_item_bytes: _Count = 32 * 2**20
    max_pixels: _Count = 32 * 10**6
    fetch_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=600)] = 10.0
    max_redirects: Annotated[int, msgspec.Meta(ge=0, le=20)] = 3
    max_total_bytes: _Count = 2**30
    max_kept_bytes: Annotated[int, msgspec.Meta(ge=0)] = 256 * 2**20


@hookimpl
def corefw_config_section() -> type[Multimodal]:
    """``--multimodal.max_pixels`` …"""
    return Multimodal
