"""An engine core under an actor, as its front end holds it."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError

from corefw.interfaces.core_launcher import LaunchedCore
from corefw.sdk.core_launchers import BoardMirror
from corefw.sdk.plugins import get_logger
from corefw_executor_ray.told import cause_of

__all__ = ["FarCore"]

_CHUNK_BYTES = 2**20
_JOIN_S = 5.0

_log = get_logger("ray")


class FarCore(LaunchedCore):
    """Two threads carry what the two say to each other, until the core has ended.

    Args:
        name: for messages.
        make_actor: makes it, without waiting for it.
        board_fd: memory in which the core's board is to be seen.
        host: this machine's address, as nodes of the cluster reach it.
    """

    def __init__(self, name: str, make_actor: Callable[[], Any], board_fd: int, host: str) -> None:
        self._name = name
        self._make_actor = make_actor
        self._actor: Any = None
        self._lock = threading.Lock()
        self._is_killed = False
        self._where = "the Ray cluster"
        self._pid = 0
        self._exit_text: str | None = None
        self._mirror = BoardMirror(board_fd)
        self.host = host
        self.control, self._far = socket.socketpair()
        self.exit_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._threads = [
            threading.Thread(target=work, name=f"ray-core-{what}", daemon=True)
            for what, work in (("news", self._listen), ("orders", self._hand_on))
        ]
        self._is_made = threading.Event()
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        return self._pid

    def exit_text(self) -> str | None:
        return self._exit_text

    def kill(self) -> None:
        """Whatever becomes of it, this process doesn't wait for a node that may not be there any more."""
        self._end("was killed")

    def close(self) -> None:
        self.kill()
        self.control.close()  # ends the thread that hands on
        for thread in self._threads:
            thread.join(_JOIN_S)
        self._far.close()
        self._mirror.close()
        if self.exit_fd >= 0:
            os.close(self.exit_fd)
            self.exit_fd = -1

    def _listen(self) -> None:
        """A thread: from the actor's making to the core's end."""
        try:
            self._end(self._followed())
        except RayError as error:
            self._end(f"was lost with its actor on {self._where} ({cause_of(error)})")
        except Exception as error:  # whatever it is, nobody must wait for the core's end any longer
            _log.exception("following %s failed", self._name)
            self._end(f"can't be followed on {self._where}: {type(error).__name__}: {error}")

    def _followed(self) -> str:
        with self._lock:
            if self._is_killed:
                return "was killed before it was started"
            self._actor = self._make_actor()
        self._is_made.set()
        self._where, self._pid, actor_pid = ray.get(self._actor.describe.remote())
        _log.info("%s: process %d on %s, under actor process %d", self._name, self._pid, self._where, actor_pid)
        while True:
            said, board, ended = ray.get(self._actor.news.remote())
            self._mirror.show(board)
            with contextlib.suppress(OSError):  # nobody listens any more
                self._far.sendall(said)
            if ended is not None:
                return f"on {self._where} {ended}"

    def _end(self, text: str) -> None:
        with self._lock:
            if self._exit_text is None:
                self._exit_text = text
                with contextlib.suppress(OSError):
                    self._far.shutdown(socket.SHUT_WR)
                os.eventfd_write(self.exit_fd, 1)
                self._is_made.set()
            actor = None if self._is_killed else self._actor  # without a core it would hold its place in the cluster
            self._is_killed = True
        if actor is not None:
            _kill(actor)

    def _hand_on(self) -> None:
        """A thread: what the front end says to the core."""
        self._is_made.wait()
        try:
            while data := self._far.recv(_CHUNK_BYTES):
                if self._exit_text is None:
                    self._actor.tell.remote(data)
        except OSError:  # this end is closed
            return


def _kill(actor: Any) -> None:
    with contextlib.suppress(RayError):  # the cluster has gone, and the actor with it
        ray.kill(actor)
