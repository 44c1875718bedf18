"""One request's outputs, as an async iterator."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from corefw.errors import EngineDeadError
from corefw.messages.outputs import EngineCoreOutput, FinishReason

__all__ = ["OutputStream"]


class OutputStream:
    """Yields a request's outputs in order; the last one has a ``finish_reason``. For one consumer.

    The request is aborted when the stream is closed, or when waiting for its next output is cancelled. A dead core
    raises EngineDeadError, after the outputs that came before.

    Args:
        request_id: which.
        abort: tells the core; called at most once.
    """

    def __init__(self, request_id: str, abort: Callable[[str], None]) -> None:
        self.request_id = request_id
        self._abort = abort
        self._items: deque[EngineCoreOutput] = deque()
        self._death: EngineDeadError | None = None
        self._complete = False
        self._exhausted = False
        # An event would cost more than the output that it announces.
        self._waiter: asyncio.Future[None] | None = None

    def put(self, output: EngineCoreOutput) -> None:
        """From the engine: news. What comes after the last output is dropped."""
        if self._complete:
            return
        self._complete = output.finish_reason is not None
        self._items.append(output)
        self._wake()

    def fail(self, death: EngineDeadError) -> None:
        """From the engine: nothing will come any more."""
        if not self._complete:
            self._death = death
            self._wake()

    def abort(self) -> None:
        """End the request; its iterator ends at once with ``FinishReason.ABORT``. Idempotent, no-op on an ended one."""
        if self._complete or self._death is not None:
            return
        self.put(EngineCoreOutput(request_id=self.request_id, finish_reason=FinishReason.ABORT))
        self._abort(self.request_id)

    async def aclose(self) -> None:
        """Abort what isn't finished; the iterator then has nothing more."""
        self.abort()
        self._items.clear()
        self._exhausted = True
        self._wake()

    def __aiter__(self) -> OutputStream:
        return self

    async def __anext__(self) -> EngineCoreOutput:
        while not self._items:
            if self._exhausted:
                raise StopAsyncIteration
            if self._death is not None:
                raise self._death
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                self.abort()
                raise
        output = self._items.popleft()
        self._exhausted = output.finish_reason is not None
        return output

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
