"""How much all requests together may hold."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from corefw.errors import CapacityError

__all__ = ["Memory", "Share"]


class Memory:
    """A number of bytes that requests take from and give back. Any thread may use it.

    Args:
        num_bytes: there are.
    """

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._num_taken = 0
        self._lock = threading.Lock()

    @property
    def num_taken(self) -> int:
        """Bytes that requests hold."""
        return self._num_taken

    def share(self) -> Share:
        """What one user takes, nothing yet; a block at whose end it is given back."""
        return Share(self)

    def change(self, num_bytes: int) -> None:
        """Take so many more, or give back where it is negative.

        Raises:
            CapacityError: there aren't so many.
        """
        with self._lock:
            if num_bytes > 0 and self._num_taken + num_bytes > self._num_bytes:
                raise CapacityError(
                    f"the media of all requests together may take {self._num_bytes} bytes "
                    "(--multimodal.max_total_bytes), which are taken; try again later, or send smaller ones"
                )
            self._num_taken += num_bytes


class Share:
    """A part of the memory. Used by one thread at a time."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._num_bytes = 0

    def grow(self, num_bytes: int) -> None:
        """Take so many more.

        Raises:
            CapacityError: there aren't so many.
        """
        self._memory.change(num_bytes)
        self._num_bytes += num_bytes

    def release(self) -> None:
        """Give all of it back; may be called again."""
        num_bytes, self._num_bytes = self._num_bytes, 0
        self._memory.change(-num_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
