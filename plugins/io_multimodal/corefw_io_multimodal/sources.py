"""The bytes of an item, wherever the client says that they are."""

from __future__ import annotations

import base64
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from corefw.errors import RequestError
from corefw_io_multimodal.addresses import AllowedHosts
from corefw_io_multimodal.fetching import Fetched, Fetcher
from corefw_io_multimodal.memory import Share
from corefw_io_multimodal.settings import Multimodal

__all__ = ["Encoded", "Sources"]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A file in base64, as ``input_audio`` has it."""

    text: str
    media_type: str = ""


class Sources:
    """Reads what clients point to. Any thread may use it.

    Args:
        settings: what may be read, and how much.
    """

    def __init__(self, settings: Multimodal) -> None:
        self._max_bytes = settings.max_item_bytes
        self._root = Path(settings.allowed_local_media_path).resolve() if settings.allowed_local_media_path else None
        self._fetcher = Fetcher(
            AllowedHosts(settings.allowed_media_domains, settings.private_hosts),
            max_bytes=settings.max_item_bytes,
            timeout_s=settings.fetch_timeout_s,
            max_redirects=settings.max_redirects,
        )

    def read(self, source: str | Encoded, share: Share, *, param: str) -> Fetched:
        """The bytes.

        Args:
            source: a URL (``data:``, ``http:``, ``https:``, ``file:``), or base64.
            share: of the memory; grows by them.
            param: the field it came in.

        Raises:
            RequestError: it can't, or may not, be read.
            CapacityError: there is no memory for it now.
        """
        if isinstance(source, Encoded):
            return self._decoded(source.text, source.media_type, share, param)
        scheme = source[:8].partition(":")[0].lower()
        if scheme == "data":
            return self._of_data_url(source, share, param)
        if scheme == "file":
            return self._of_file(source, share, param)
        return self._fetcher.fetch(source, share, param=param)

    def _of_data_url(self, url: str, share: Share, param: str) -> Fetched:
        header, comma, text = url.partition(",")
        if not comma:
            raise RequestError("a data URL has a comma before its data", param=param, code="media_url_invalid")
        media_type, *options = header[len("data:") :].lower().split(";")
        if options and options[-1].strip() == "base64":
            return self._decoded(unquote(text), media_type, share, param)
        self._take(len(text), share, param)
        return Fetched(unquote_to_bytes(text), media_type)

    def _decoded(self, text: str, media_type: str, share: Share, param: str) -> Fetched:
        self._take(len(text) * 3 // 4, share, param)
        try:
            return Fetched(base64.b64decode(text, validate=True), media_type)
        except ValueError:
            raise RequestError("that isn't valid base64", param=param, code="media_invalid") from None

    def _of_file(self, url: str, share: Share, param: str) -> Fetched:
        refused = RequestError("this server doesn't read that file", param=param, code="media_host_not_allowed")
        if self._root is None:
            raise refused
        try:
            parts = urlsplit(url)
            path = Path(unquote(parts.path)).resolve(strict=True)
            found = path.stat()
        except (OSError, ValueError):
            raise refused from None
        if parts.netloc not in ("", "localhost") or not path.is_relative_to(self._root):
            raise refused
        if not stat.S_ISREG(found.st_mode):
            raise refused
        self._take(found.st_size, share, param)
        try:
            with path.open("rb") as file:
                return Fetched(file.read(found.st_size), "")
        except OSError:
            raise refused from None

    def _take(self, num_bytes: int, share: Share, param: str) -> None:
        if num_bytes > self._max_bytes:
            raise RequestError(
                f"the media have more than {self._max_bytes} bytes (--multimodal.max_item_bytes)",
                param=param,
                code="media_too_large",
            )
        share.grow(num_bytes)
