"""The listening socket, bound before anything slow starts, so that a taken port is told at once."""

from __future__ import annotations

import errno
import socket

from corefw.config.engine_config import ServerConfig
from corefw.errors import ConfigError

__all__ = ["bind_socket", "url_of"]


def bind_socket(server_config: ServerConfig) -> socket.socket:
    """Bind; the server starts to listen later, so a client is refused rather than left waiting until then.

    Raises:
        ConfigError: the address is unknown, taken or not allowed, with the remedy.
    """
    host, port = server_config.host, server_config.port
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
    bound.set_inheritable(False)
    return bound


def url_of(bound: socket.socket) -> str:
    """Where clients on this machine reach the socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _remedy(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"--port {port} on {host} is in use; stop what listens there, or take another (0 picks a free one)"
    if error.errno == errno.EACCES:
        return f"--port {port} needs privileges; use one of 1024 or more"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is no address of this machine; use 127.0.0.1 or 0.0.0.0"
    return f"can't listen on --host {host} --port {port}: {error.strerror}"
