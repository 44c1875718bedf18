"""Where ranks meet for the first time: an address that all of them were given, and the store behind it."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Self
from urllib.parse import SplitResult, urlsplit

from corefw.errors import ConfigError, EngineStartError

if TYPE_CHECKING:
    from types import TracebackType

    from torch.distributed import Store

__all__ = ["LOOPBACK", "LocalMeeting", "is_local", "open_store", "own_host"]

LOOPBACK = "127.0.0.1"

_LOCAL_HOSTS = (LOOPBACK, "localhost", "::1")
_SCHEMES = "file:///PATH, tcp://HOST:PORT[/PREFIX] or agent://HOST:PORT[/PREFIX]"


class LocalMeeting:
    """A meeting point for ranks on this machine that leaves nothing behind, however they end: a file without a name.

    Needs no port, imports no torch. Whoever starts the ranks keeps it until all have joined.

    Attributes:
        address: what to give the ranks.
    """

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("corefw-meeting")
        self.address = f"file:///proc/{os.getpid()}/fd/{self._descriptor}"

    def close(self) -> None:
        """May be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def is_local(address: str) -> bool:
    """Whether who meets there runs on this machine."""
    place = _parsed(address)
    return place.scheme == "file" or place.hostname in _LOCAL_HOSTS


def own_host(address: str) -> str:
    """This machine's address on the way to the meeting point: by which others who meet there reach it, too."""
    place = _parsed(address)
    family, kind, protocol, _, there = socket.getaddrinfo(place.hostname, place.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as route:
        route.connect(there)  # sends nothing; the kernel says which interface it would take
        return str(route.getsockname()[0])


def open_store(address: str, *, rank: int, world_size: int, timeout_s: float) -> Store:
    """Go to the meeting point.

    Args:
        address: ``file:///PATH`` (empty or not there yet), ``tcp://HOST:PORT`` where rank 0 listens, or
            ``agent://HOST:PORT`` where somebody else does. A path after the port keeps what is written there apart.
        rank: this one's.
        world_size: ranks.
        timeout_s: how long to wait for what others write.

    Raises:
        ConfigError: the address is malformed.
        EngineStartError: nobody listens there, or the port is taken.
    """
    from torch import distributed

    place, timeout = _parsed(address), timedelta(seconds=timeout_s)
    try:
        if place.scheme == "file":
            store: Store = distributed.FileStore(place.path, -1)
        else:
            store = distributed.TCPStore(
                str(place.hostname),
                place.port or 0,
                world_size,
                rank == 0 and place.scheme == "tcp",
                timeout=timeout,
                wait_for_workers=False,
            )
    except RuntimeError as error:
        where = "listen at" if rank == 0 and place.scheme == "tcp" else "reach"
        raise EngineStartError(f"rank {rank} of {world_size} can't {where} {address}: {_first_line(error)}") from error
    store.set_timeout(timeout)
    return distributed.PrefixStore(place.path, store) if place.scheme != "file" and place.path else store


def _parsed(address: str) -> SplitResult:
    try:
        place = urlsplit(address)
        complete = place.path if place.scheme == "file" else place.hostname and place.port
    except ValueError:
        complete = None
    if not complete or place.scheme not in ("file", "tcp", "agent"):
        raise ConfigError(f"ranks can't meet at {address[:200]!r}; an address is {_SCHEMES}")
    return place


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300]
