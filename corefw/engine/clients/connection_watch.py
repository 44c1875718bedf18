"""Whether the one that is connected to a listening socket still is; others may come and go."""

from __future__ import annotations

import zmq
from zmq.utils.monitor import recv_monitor_message

__all__ = ["ConnectionWatch"]


class ConnectionWatch:
    """Used by the thread that reads the socket, and made before it listens.

    Attributes:
        source: readable when a connection has ended, whose ever it was.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._descriptor: int | None = None
        self.source: zmq.Socket[bytes] = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)

    def follow(self, frame: zmq.Frame) -> None:
        """The connection to watch is the one that this came through."""
        self._descriptor = int(frame.get(zmq.SRCFD))

    def has_ended(self) -> bool:
        """Take what ``source`` has to say."""
        while self.source.poll(0):
            if recv_monitor_message(self.source)["value"] == self._descriptor:
                return True
        return False

    def close(self) -> None:
        """Before the socket's context is. May be called twice."""
        if not self._socket.closed:
            self._socket.disable_monitor()
        self.source.close(linger=0)
