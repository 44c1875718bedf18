"""The listening socket, bound before anything slow starts, so that a taken address is told at once."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from corefw.config.engine_config import ServerConfig
from corefw.errors import ConfigError

__all__ = ["Listener", "listen_on"]

# Owner and group may connect: a proxy is let in by its group.
_UDS_UMASK = 0o117


class Listener:
    """A bound socket, and the file that it has if it is a unix socket.

    Attributes:
        socket: give it to the server.
        url: where clients on this machine reach it.
    """

    def __init__(self, bound: socket.socket, url: str, path: Path | None = None) -> None:
        self.socket = bound
        self.url = url
        self._path = path
        self._identity = None if path is None else _identity(path)

    def close(self) -> None:
        """Close the socket and remove its file, if it is still ours. May be called twice."""
        self.remove_file()
        self.socket.close()

    def remove_file(self) -> None:
        """Let nobody new find the socket; who is connected stays."""
        if self._path is not None and self._identity is not None and _identity(self._path) == self._identity:
            self._path.unlink(missing_ok=True)
        self._identity = None


def listen_on(config: ServerConfig) -> Listener:
    """Bind what the configuration names.

    A TCP socket refuses clients until the server starts to listen. A unix socket lets them wait: another server that
    starts meanwhile could not tell it from a dead one's otherwise.

    Raises:
        ConfigError: the address is unknown, taken or not allowed, with the remedy.
    """
    if config.uds is not None:
        return _bind_unix(Path(config.uds).absolute())
    return _bind_tcp(config)


def _bind_tcp(config: ServerConfig) -> Listener:
    host, port = config.host, config.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        raise ConfigError(f"--host {host[:80]!r} is no address of this machine; use 127.0.0.1 or 0.0.0.0") from None
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise ConfigError(_remedy(error, host, port)) from None
    return Listener(bound, _url_of(bound, "http" if config.ssl_certfile is None else "https"))


def _url_of(bound: socket.socket, scheme: str) -> str:
    host, port = bound.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _remedy(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"--port {port} on {host} is in use; stop what listens there, or take another (0 picks a free one)"
    if error.errno == errno.EACCES:
        return f"--port {port} needs privileges; use one of 1024 or more"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is no address of this machine; use 127.0.0.1 or 0.0.0.0"
    return f"can't listen on --host {host} --port {port}: {error.strerror}"


def _bind_unix(path: Path) -> Listener:
    try:
        with _alone_in(path.parent):
            _clear(path)
            bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                previous = os.umask(_UDS_UMASK)
                try:
                    bound.bind(str(path))
                finally:
                    os.umask(previous)
                bound.listen()
            except OSError:
                bound.close()
                raise
            return Listener(bound, f"unix:{path}", path)
    except OSError as error:
        raise ConfigError(f"--uds {str(path)!r} can't be made: {error.strerror}") from None


@contextlib.contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """One server at a time looks at the directory's sockets and binds; else two could both replace a dead one's."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _clear(path: Path) -> None:
    """Remove the socket of a server that is dead; leave everything else.

    Raises:
        ConfigError: something else is there, or somebody listens.
        OSError: nobody can tell.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"--uds {str(path)!r} exists and is no socket; it is left as it is, take another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:  # alive, with a full queue
            pass
    raise ConfigError(f"--uds {str(path)!r} is in use; stop the server that listens there, or take another path")


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns  # a number is used again once its file is gone
