"""What prompts given as embeddings take of memory, of all requests together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from corefw.errors import CapacityError, RequestError

__all__ = ["EmbedsMemory"]


class EmbedsMemory:
    """Counts the embeddings on their way to the engine, a copy for each output. Used on the event loop alone.

    A body is bounded before it is read; what ``n`` makes of it is not.

    Args:
        max_bytes: of all copies that may be there at once.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Bytes that are held."""
        return self._num_bytes

    @contextmanager
    def held(self, num_bytes: int) -> Iterator[None]:
        """A block in which so many bytes are in memory.

        Raises:
            RequestError: there is never room for so many.
            CapacityError: there is none now.
        """
        if num_bytes > self._max_bytes:
            raise RequestError(
                f"the outputs of these embeddings take {num_bytes} bytes, at most {self._max_bytes} are allowed "
                "(--max-total-body-bytes); send fewer, or lower n",
                param="n",
            )
        if self._num_bytes + num_bytes > self._max_bytes:
            raise CapacityError(
                f"the embeddings of the requests that are being answered take {self._max_bytes} bytes together "
                "(--max-total-body-bytes); try again later",
                status=503,
            )
        self._num_bytes += num_bytes
        try:
            yield
        finally:
            self._num_bytes -= num_bytes
