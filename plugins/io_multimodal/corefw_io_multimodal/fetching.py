"""Fetching over HTTP: the address is checked and then connected to, at each redirect; size and time are bounded."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urljoin

from corefw.errors import RequestError
from corefw_io_multimodal.addresses import AllowedHosts, Target, resolve
from corefw_io_multimodal.memory import Share

__all__ = ["Fetched", "Fetcher"]

_REDIRECTS = (301, 302, 303, 307, 308)
_CHUNK_BYTES = 64 * 1024
_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "corefw", "Connection": "close"}


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file, and the type that its server declares for it (empty where it doesn't)."""

    content: bytes
    media_type: str


class Fetcher:
    """Fetches files in the thread that asks for them.

    Args:
        hosts: that may be asked.
        max_bytes: of a file.
        timeout_s: of all requests for one file.
        max_redirects: in a row.
    """

    def __init__(self, hosts: AllowedHosts, *, max_bytes: int, timeout_s: float, max_redirects: int) -> None:
        self._hosts = hosts
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._max_redirects = max_redirects
        self._tls = ssl.create_default_context()

    def fetch(self, url: str, share: Share, *, param: str) -> Fetched:
        """The file behind a URL.

        Args:
            url: as the client wrote it.
            share: of the memory; grows as the file comes.
            param: the field it came in.

        Raises:
            RequestError: it may not, or can't, be fetched.
            CapacityError: there is no memory for it now.
        """
        deadline_s = time.monotonic() + self._timeout_s
        for _ in range(self._max_redirects + 1):
            target = self._hosts.target(url, param)
            addresses = resolve(target, param)
            try:
                with self._answer(target, addresses, deadline_s) as answer:
                    if answer.status not in _REDIRECTS:
                        fetched = self._read(answer, share, param)
                        if time.monotonic() < deadline_s:  # else its end may be that of the connection alone
                            return fetched
                        raise TimeoutError
                    url = urljoin(url, answer.getheader("Location", ""))
            except (OSError, http.client.HTTPException, ValueError):
                # The cause stays here: it would tell clients what there is in the server's network.
                late = time.monotonic() >= deadline_s
                why = f"it took longer than {self._timeout_s:g} s" if late else "its server can't be reached or read"
                raise _failed(why, param) from None
        raise _failed(f"it is redirected more than {self._max_redirects} times", param)

    @contextmanager
    def _answer(
        self, target: Target, addresses: Sequence[str], deadline_s: float
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(target.host, target.port)
        connection.sock = _connected(addresses, target.port, deadline_s)
        # A timeout of the socket begins anew with every byte: what ends a trickle is the connection's end.
        timer = threading.Timer(max(0.0, deadline_s - time.monotonic()), lambda: _shut(connection.sock))
        timer.daemon = True
        timer.start()
        try:
            if target.scheme == "https":
                secured = self._tls.wrap_socket(
                    connection.sock, server_hostname=target.host, do_handshake_on_connect=False
                )
                connection.sock = secured
                secured.do_handshake()
            connection.request("GET", target.path, headers={"Host": _host_header(target), **_HEADERS})
            yield connection.getresponse()
        finally:
            timer.cancel()
            connection.close()

    def _read(self, answer: http.client.HTTPResponse, share: Share, param: str) -> Fetched:
        if answer.status != 200:
            raise _failed(f"its server answers with status {answer.status}", param)
        if answer.getheader("Content-Encoding", "identity").strip().lower() != "identity":
            raise _failed("its server sends it compressed, which wasn't asked for", param)
        if answer.length is not None and answer.length > self._max_bytes:
            raise self._too_large(param)
        declared_length = answer.length
        chunks: list[bytes] = []
        num_bytes = 0
        while chunk := answer.read(_CHUNK_BYTES):
            num_bytes += len(chunk)
            if num_bytes > self._max_bytes:
                raise self._too_large(param)
            share.grow(len(chunk))
            chunks.append(chunk)
        if declared_length is not None and num_bytes != declared_length:
            raise http.client.IncompleteRead(b"", declared_length - num_bytes)
        return Fetched(b"".join(chunks), answer.getheader("Content-Type", "").partition(";")[0].strip().lower())

    def _too_large(self, param: str) -> RequestError:
        return _failed(f"it has more than {self._max_bytes} bytes", param)


def _failed(why: str, param: str) -> RequestError:
    return RequestError(f"the media can't be fetched: {why}", param=param, code="media_not_fetched")


def _host_header(target: Target) -> str:
    host = f"[{target.host}]" if ":" in target.host else target.host
    return host if target.port in (80, 443) else f"{host}:{target.port}"


def _connected(addresses: Sequence[str], port: int, deadline_s: float) -> socket.socket:
    failure: OSError = TimeoutError()
    for address in addresses:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            break
        try:
            return socket.create_connection((address, port), timeout=left_s)
        except OSError as error:
            failure = error
    raise failure


def _shut(connection: socket.socket | None) -> None:
    if connection is None:
        return
    with contextlib.suppress(OSError):  # it has ended by itself
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # that of TLS would let the reader go on without it
