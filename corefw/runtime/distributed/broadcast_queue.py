"""A queue from one process to others on the same machine: a ring of memory without a name, and counters to wait on.

Nobody reads what another process writes without having been told by an eventfd, so that the kernel orders the
accesses on every processor, and nothing but messages is in the memory. One eventfd a reader counts messages that it
hasn't taken; a second one counts bytes that it has given back.

A record in the ring is a header (length, kind) and a payload, aligned to 8 bytes and in one piece. A message that
takes more than half the ring is cut into several records, which readers take while the rest is being written.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

from corefw.errors import EngineDeadError
from corefw.messages.codec import Frame

__all__ = ["CAPACITY_BYTES", "SPIN_S", "BroadcastReader", "BroadcastWriter", "QueueFds"]

T = TypeVar("T")

CAPACITY_BYTES = 4 * 2**20
# A woken process needs tens of microseconds to run; a look at the counter costs one or two.
SPIN_S = 50e-6
_ALIGNMENT = 8
_HEADER = struct.Struct("<II")
# How often a writer without room looks after other work.
_IDLE_MS = 1


class _Kind(IntEnum):
    """WHOLE ends a message, PART is continued, SKIP leads to the ring's beginning."""

    WHOLE = 0
    PART = 1
    SKIP = 2


@dataclass(frozen=True, slots=True)
class QueueFds:
    """File descriptors of one queue, which is all there is of it: what isn't open in any process is gone.

    Attributes:
        memory: of the ring.
        filled: a reader: counts records that it hasn't taken.
        freed: a reader: counts bytes that it has taken and the writer doesn't know of.
    """

    memory: int
    filled: tuple[int, ...]
    freed: tuple[int, ...]

    @classmethod
    def create(cls, num_readers: int, capacity_bytes: int = CAPACITY_BYTES) -> QueueFds:
        """A new queue. ``capacity_bytes`` is rounded up to whole pages."""
        capacity = -(-capacity_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = os.memfd_create("corefw-queue", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, capacity)
        # Nobody can pull the memory out from under another process.
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
        filled = tuple(os.eventfd(0, flags) for _ in range(num_readers))
        return cls(memory, filled, tuple(os.eventfd(0, flags) for _ in range(num_readers)))

    def of_reader(self, index: int) -> QueueFds:
        """What one reader needs."""
        return QueueFds(self.memory, self.filled[index : index + 1], self.freed[index : index + 1])

    def all(self) -> tuple[int, ...]:
        """Every descriptor, for ``pass_fds``."""
        return (self.memory, *self.filled, *self.freed)

    def to_text(self) -> str:
        """For a command line."""
        return ",".join(map(str, self.all()))

    @classmethod
    def from_text(cls, text: str) -> QueueFds:
        """What ``to_text`` gave; the descriptors were inherited and aren't handed on."""
        memory, *counters = map(int, text.split(","))
        for fd in (memory, *counters):
            os.set_inheritable(fd, False)
        half = len(counters) // 2
        return cls(memory, tuple(counters[:half]), tuple(counters[half:]))

    def close(self) -> None:
        """Close them in this process. Not twice."""
        for fd in self.all():
            os.close(fd)


class BroadcastWriter:
    """Sends each message to every reader. Used by one thread.

    Args:
        fds: of the queue.
        watched: descriptors that become readable when a reader has died or there is no use in waiting for one.
    """

    def __init__(self, fds: QueueFds, watched: Sequence[int] = ()) -> None:
        self._fds = fds
        self._watched = frozenset(watched)
        self._memory = mmap.mmap(fds.memory, 0)
        self._capacity = len(self._memory)
        self._written = 0
        self._freed = [0] * len(fds.freed)

    def send(self, frames: Sequence[Frame], idle: Callable[[], object] | None = None) -> None:
        """Put a message into the ring; waits for readers where there is no room.

        Args:
            frames: of one message.
            idle: called now and then while it waits, so that two full queues don't wait for each other.

        Raises:
            EngineDeadError: a watched descriptor became readable while there was no room.
        """
        views = [memoryview(frame).cast("B") for frame in frames]
        table = struct.pack(f"<{1 + len(views)}Q", len(views), *map(len, views))
        size = len(table) + sum(map(len, views))
        if size <= self._capacity // 2 - _HEADER.size:
            self._put(_Kind.WHOLE, size, [memoryview(table), *views], idle)
            return
        parts = list(_cut([memoryview(table), *views], self._capacity // 4))
        for part in parts[:-1]:
            self._put(_Kind.PART, len(part), [part], idle)
        self._put(_Kind.WHOLE, len(parts[-1]), parts[-1:], idle)

    def close(self) -> None:
        """Let go of the memory. The descriptors stay open."""
        self._memory.close()

    def _put(self, kind: _Kind, size: int, pieces: Sequence[memoryview], idle: Callable[[], object] | None) -> None:
        length = _aligned(_HEADER.size + size)
        offset = self._written % self._capacity
        skipped = self._capacity - offset if offset + length > self._capacity else 0
        self._wait_for_room(skipped + length, idle)
        if skipped:
            _HEADER.pack_into(self._memory, offset, 0, _Kind.SKIP)
            offset = 0
        _HEADER.pack_into(self._memory, offset, size, kind)
        at = offset + _HEADER.size
        for piece in pieces:
            self._memory[at : at + len(piece)] = piece
            at += len(piece)
        self._written += skipped + length
        for fd in self._fds.filled:
            os.eventfd_write(fd, 1)

    def _wait_for_room(self, wanted: int, idle: Callable[[], object] | None) -> None:
        if self._room() >= wanted:
            return
        poll = select.poll()
        for fd in (*self._fds.freed, *self._watched):
            poll.register(fd, select.POLLIN)
        while self._take_back() < wanted:
            if idle is not None:
                idle()
            ready = {fd for fd, _ in poll.poll(_IDLE_MS if idle else None)}
            if ready & self._watched and self._take_back() < wanted:
                raise EngineDeadError("a reader of the broadcast queue has gone")

    def _room(self) -> int:
        return self._capacity - (self._written - min(self._freed, default=self._written))

    def _take_back(self) -> int:
        """Room, after a look at what the readers gave back."""
        for index, fd in enumerate(self._fds.freed):
            self._freed[index] += _count(fd)
        return self._room()


class BroadcastReader(Generic[T]):
    """Takes every message, in order. Used by one thread.

    Args:
        fds: of this reader, see ``QueueFds.of_reader``.
        decode: makes a message of its frames. The first is a view that ends with the call; the others may be kept.
        watched: descriptors that become readable when the writer has died or there is no use in waiting for it.
    """

    def __init__(self, fds: QueueFds, decode: Callable[[Sequence[Frame]], T], watched: Sequence[int] = ()) -> None:
        (self._filled,), (self._freed,) = fds.filled, fds.freed
        self._decode = decode
        self._memory = mmap.mmap(fds.memory, 0, prot=mmap.PROT_READ)
        self._view = memoryview(self._memory)
        self._position = 0
        self._num_records = 0
        self._watched = frozenset(watched)
        self._poll = select.poll()
        for fd in (self._filled, *self._watched):
            self._poll.register(fd, select.POLLIN)

    def receive(self, timeout_s: float | None = None) -> T:
        """Wait for the next message.

        Raises:
            EngineDeadError: a watched descriptor became readable, and everything that was sent has been taken.
            TimeoutError: nothing came.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        kind, payload = self._next_record(deadline)
        if kind is _Kind.WHOLE:
            try:
                return self._decode_in_place(payload)
            finally:
                self._free(payload)
        joined = bytearray()
        while True:
            joined += payload
            self._free(payload)
            if kind is _Kind.WHOLE:
                return self._decode(_frames(memoryview(joined)))
            kind, payload = self._next_record(None)  # what has begun is on its way

    def ready(self) -> bool:
        """Whether a message is there, or the beginning of one."""
        if not self._num_records:
            self._num_records = _count(self._filled)
        return self._num_records > 0

    def close(self) -> None:
        """Let go of the memory. The descriptors stay open."""
        self._view.release()
        self._memory.close()

    def _decode_in_place(self, payload: memoryview) -> T:
        first, *others = _frames(payload)
        try:
            return self._decode([first, *map(bytes, others)])
        finally:
            first.release()
            for view in others:
                view.release()

    def _next_record(self, deadline: float | None) -> tuple[_Kind, memoryview]:
        while not self._num_records:
            self._num_records = self._wait(deadline)
        self._num_records -= 1
        size, kind = self._header()
        if kind is _Kind.SKIP:
            skipped = len(self._view) - self._position % len(self._view)
            self._position += skipped
            os.eventfd_write(self._freed, skipped)
            size, kind = self._header()
        at = self._position % len(self._view) + _HEADER.size
        return kind, self._view[at : at + size]

    def _header(self) -> tuple[int, _Kind]:
        size, kind = _HEADER.unpack_from(self._view, self._position % len(self._view))
        return size, _Kind(kind)

    def _free(self, payload: memoryview) -> None:
        length = _aligned(_HEADER.size + len(payload))
        payload.release()
        self._position += length
        os.eventfd_write(self._freed, length)

    def _wait(self, deadline: float | None) -> int:
        """Number of new records; may be 0."""
        spin_until = time.monotonic() + SPIN_S
        while not (count := _count(self._filled)):
            if time.monotonic() >= spin_until:
                return self._sleep(deadline)
        return count

    def _sleep(self, deadline: float | None) -> int:
        timeout_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        ready = {fd for fd, _ in self._poll.poll(timeout_ms)}
        count = _count(self._filled)  # what a writer sent before its death comes first
        if not count and ready & self._watched:
            raise EngineDeadError("the writer of the broadcast queue has gone")
        if not count and deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError("nothing came through the broadcast queue")
        return count


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _count(fd: int) -> int:
    """The counter's value, which is 0 from then on."""
    try:
        return os.eventfd_read(fd)
    except BlockingIOError:
        return 0


def _cut(pieces: Sequence[memoryview], size: int) -> Iterator[memoryview]:
    """The pieces one after another, in parts of at most ``size`` bytes."""
    for piece in pieces:
        for start in range(0, len(piece), size):
            yield piece[start : start + size]


def _frames(payload: memoryview) -> list[memoryview]:
    (num_frames,) = struct.unpack_from("<Q", payload)
    lengths = struct.unpack_from(f"<{num_frames}Q", payload, 8)
    at = 8 * (1 + num_frames)
    frames = []
    for length in lengths:
        frames.append(payload[at : at + length])
        at += length
    return frames
