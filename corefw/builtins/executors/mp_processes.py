"""Worker processes as their executor sees them: started, watched, ended."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from corefw.engine.child import exit_text, spawn_guarded
from corefw.errors import EngineStartError
from corefw.messages.control_channel import Channel, StartFailed, search_path
from corefw.observability.logging import logging_settings
from corefw.runtime.distributed.broadcast_queue import QueueFds
from corefw.runtime.distributed.worker_messages import StartMessage, WorkerConfigure, WorkerReady

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig

__all__ = ["WorkerMonitor", "WorkerProcess", "await_ready", "end_all"]

_REAP_S = 1.0
_POLL_S = 0.01


class WorkerProcess:
    """A child that becomes one rank's worker. It never outlives this process.

    Attributes:
        rank: its rank in the engine.
        answers: the queue that it writes.
        control: this end of the socket over which it starts.
        exit_fd: readable once it has exited.
    """

    def __init__(self, rank: int, child: subprocess.Popen[bytes], control: socket.socket, answers: QueueFds) -> None:
        self._child = child
        self._channel: Channel[StartMessage] = Channel(control, StartMessage)
        self.rank = rank
        self.answers = answers
        self.control = control
        self.exit_fd = os.pidfd_open(child.pid)

    @classmethod
    def spawn(cls, rank: int, commands: QueueFds, environment: Mapping[str, str]) -> WorkerProcess:
        """Start the child and return at once.

        Args:
            rank: its rank.
            commands: its end of the queue from which it takes commands.
            environment: of the child.
        """
        ours, theirs = socket.socketpair()
        answers = QueueFds.create(1)
        arguments = (
            f"--control-fd={theirs.fileno()}",
            f"--commands={commands.to_text()}",
            f"--answers={answers.to_text()}",
        )
        descriptors = (theirs.fileno(), *commands.all(), *answers.all())
        with theirs:
            child = spawn_guarded("corefw.runtime.worker_main", arguments, descriptors, environment)
        return cls(rank, child, ours, answers)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether it hasn't exited."""
        return self._child.poll() is None

    def configure(self, config: EngineConfig, address: str) -> None:
        """Tell it what to build; doesn't wait for that."""
        level, log_format = logging_settings()
        message = WorkerConfigure(
            config=config,
            rank=self.rank,
            address=address,
            log_level=level,
            log_format=log_format,
            search_path=search_path(),
        )
        with contextlib.suppress(OSError):  # it has died; whoever waits for it is told how
            self._channel.send(message)

    def check_ready(self) -> bool:
        """Take what it says of its start, once there is something.

        Raises:
            EngineStartError: it can't start; the message is the cause's, with the rank.
        """
        message = self._channel.receive()
        if isinstance(message, StartFailed):
            raise message.to_exception(f"worker {self.rank}")
        if not isinstance(message, WorkerReady):
            raise EngineStartError(f"{self.exit_text()} before it was ready; its last words are in the log")
        return True

    def exit_text(self) -> str:
        """How it ended: ``worker 1 was killed by signal 9 (SIGKILL)``. Waits for the exit status."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_REAP_S)
        status = self._child.poll()
        if status is None:
            return f"worker {self.rank} went silent"
        return f"worker {self.rank} {exit_text(status)}"

    def kill(self) -> None:
        """Kill it if it runs, and reap it. May be called twice."""
        if self.alive:
            self._child.kill()
        self._child.wait()

    def close(self) -> None:
        """Close what this process holds of it. Not twice."""
        self.control.close()
        self.answers.close()
        os.close(self.exit_fd)


def await_ready(workers: Sequence[WorkerProcess]) -> None:
    """Wait until every worker has loaded its model.

    Raises:
        EngineStartError: one of them can't; names it.
    """
    waiting = {worker.control.fileno(): worker for worker in workers}
    poll = select.poll()
    for fd in waiting:
        poll.register(fd, select.POLLIN)  # its hang-up is reported as well
    while waiting:
        for fd, _ in poll.poll():
            waiting[fd].check_ready()
            poll.unregister(fd)
            del waiting[fd]


def end_all(workers: Sequence[WorkerProcess], grace_s: float) -> None:
    """Wait for workers that were told to stop, and kill those that don't."""
    deadline = time.monotonic() + grace_s
    while any(worker.alive for worker in workers) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    for worker in workers:
        worker.kill()


class WorkerMonitor:
    """A thread that sees workers exit.

    Args:
        workers: all of them.
        on_exit: told, on the monitor's thread, how the first one that exits has ended.
    """

    def __init__(self, workers: Sequence[WorkerProcess], on_exit: Callable[[str], None]) -> None:
        self._workers = workers
        self._on_exit = on_exit
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._watch, name="worker-monitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer; an exit is as it should be from now on. Not twice."""
        os.eventfd_write(self._stop_fd, 1)
        self._thread.join()
        os.close(self._stop_fd)

    def _watch(self) -> None:
        poll = select.poll()
        for fd in (self._stop_fd, *(worker.exit_fd for worker in self._workers)):
            poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll()}
        if self._stop_fd not in ready:
            self._on_exit("; ".join(self._ends(ready)))

    def _ends(self, ready: set[int]) -> Iterator[str]:
        return (worker.exit_text() for worker in self._workers if worker.exit_fd in ready)
