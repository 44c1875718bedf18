"""A piece of memory in which the core writes what it does; its parent reads it, also after the core was killed.

The standard library alone is imported: a process is spawned with its board before anything else is there.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corefw.messages.scheduling import SchedulerOutput

__all__ = ["BEAT_S", "BoardMirror", "BoardReader", "Doing", "StepBoard"]

# How often the core's heartbeat thread writes.
BEAT_S = 0.2

# Words of 64 bits, each written in one store: whoever is killed meanwhile leaves the old value or the new one.
_BEATS, _BEGUN, _ENDED, _TOKENS, _ENDED_TOKENS, _IDS, _DOING, _TURNS = range(8)
_WORD_BYTES = 8
_WORDS_BYTES = 8 * _WORD_BYTES
_HEADER_BYTES = 4096
# Ids lie in two places by turns, so that a half-written list is never the valid one. Pages that nobody writes to don't
# exist, so this costs address space alone; it has room for 40,000 requests.
_IDS_BYTES = 2 * 2**20
_NUM_BYTES = _HEADER_BYTES + 2 * _IDS_BYTES


class Doing(IntEnum):
    """What the core's thread is at: WAITING for something to do, WORK of its own, a CALL of what others wrote."""

    WAITING = 0
    WORK = 1
    CALL = 2


class StepBoard:
    """The core's side. The steps belong to the core's thread; a thread of its own writes the heartbeat.

    Args:
        fd: of the memory; is closed.
    """

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, _NUM_BYTES)
        os.close(fd)
        self._words = memoryview(self._memory)[:_HEADER_BYTES].cast("Q")
        self._steps: deque[tuple[list[str], int]] = deque()
        self._told: list[str] = []
        self._place = 0
        self._stopped = threading.Event()

    def start_beating(self) -> None:
        """Write that the process runs, until it doesn't."""
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def step_begins(self, scheduled: SchedulerOutput) -> None:
        """The workers get a step; several may be under way, which end in the order in which they began."""
        self._steps.append((list(scheduled.num_scheduled_tokens), scheduled.total_num_scheduled_tokens))
        self._tell_running()
        self._words[_BEGUN] += 1

    def step_ends(self) -> None:
        """The oldest step's result has been taken. Not called when the core dies of it."""
        _, num_tokens = self._steps.popleft()
        self._words[_ENDED_TOKENS] = num_tokens
        self._words[_ENDED] += 1
        if self._steps:
            self._tell_running()

    def turns_to(self, doing: Doing) -> None:
        """The core's thread has got on, and does this from now on."""
        self._words[_DOING] = doing
        self._words[_TURNS] += 1

    def stop(self) -> None:
        """No more heartbeats: the process is about to end."""
        self._stopped.set()

    def _beat(self) -> None:
        while not self._stopped.wait(BEAT_S):
            self._words[_BEATS] += 1

    def _tell_running(self) -> None:
        ids = self._steps[0][0] if len(self._steps) == 1 else [i for step in self._steps for i in step[0]]
        self._words[_TOKENS] = self._steps[0][1]
        if ids == self._told:
            return
        payload = "\n".join(ids).encode()[:_IDS_BYTES]
        self._place = 1 - self._place
        start = _HEADER_BYTES + self._place * _IDS_BYTES
        self._memory[start : start + len(payload)] = payload
        self._words[_IDS] = len(payload) << 1 | self._place
        self._told = ids


class BoardReader:
    """The parent's side, and the memory's owner.

    Attributes:
        fd: for the child, which inherits it; -1 once closed.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("corefw-step-board", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.fd, _NUM_BYTES)
            self._memory = mmap.mmap(self.fd, _NUM_BYTES)
        except OSError:
            os.close(self.fd)
            raise

    @property
    def num_beats(self) -> int:
        """Grows while the process runs."""
        return self._word(_BEATS)

    @property
    def num_ended(self) -> int:
        """Steps whose result was taken."""
        return self._word(_ENDED)

    @property
    def is_stepping(self) -> bool:
        """Whether a step is under way, or was when the process died."""
        return self._word(_BEGUN) > self._word(_ENDED)

    @property
    def doing(self) -> Doing:
        """What the core's thread is at."""
        return Doing(self._word(_DOING))

    @property
    def num_turns(self) -> int:
        """Grows whenever the core's thread gets on."""
        return self._word(_TURNS)

    @property
    def num_step_tokens(self) -> int:
        """Size of the oldest step that is under way."""
        return self._word(_TOKENS)

    @property
    def num_ended_tokens(self) -> int:
        """Size of the step that ended last."""
        return self._word(_ENDED_TOKENS)

    def running_ids(self) -> Sequence[str]:
        """Requests of the steps that are under way; empty where there are none."""
        if self._memory.closed or not self.is_stepping:
            return ()
        told = self._word(_IDS)
        start = _HEADER_BYTES + (told & 1) * _IDS_BYTES
        payload = self._memory[start : start + (told >> 1)]
        return tuple(dict.fromkeys(payload.decode(errors="replace").split("\n"))) if payload else ()

    def snapshot(self) -> bytes:
        """All that can be read now, for a ``BoardMirror``; complete once the process has died."""
        header = self._memory[:_WORDS_BYTES]
        told = int.from_bytes(header[_IDS * _WORD_BYTES : (_IDS + 1) * _WORD_BYTES], "little")
        start = _HEADER_BYTES + (told & 1) * _IDS_BYTES
        return header + self._memory[start : start + (told >> 1)]

    def close(self) -> None:
        """Give the memory back; the readings are zero then. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._memory.close()

    def _word(self, index: int) -> int:
        if self._memory.closed:
            return 0
        return int.from_bytes(self._memory[index * _WORD_BYTES : (index + 1) * _WORD_BYTES], "little")


class BoardMirror:
    """Writes what was read of a board on another machine, where a ``BoardReader`` here finds it.

    Args:
        fd: of the reader's memory; stays open.
    """

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, _NUM_BYTES)

    def show(self, snapshot: bytes) -> None:
        """From any thread: what ``BoardReader.snapshot`` gave. Nothing happens once it is closed."""
        if self._memory.closed:
            return
        told = int.from_bytes(snapshot[_IDS * _WORD_BYTES : (_IDS + 1) * _WORD_BYTES], "little")
        ids = snapshot[_WORDS_BYTES:]
        start = _HEADER_BYTES + (told & 1) * _IDS_BYTES
        self._memory[start : start + len(ids)] = ids
        self._memory[:_WORDS_BYTES] = snapshot[:_WORDS_BYTES]

    def close(self) -> None:
        """Give the memory back. May be called twice."""
        self._memory.close()
