"""Several streams as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

__all__ = ["merge"]

T = TypeVar("T")


async def merge(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Items of all streams as they come, each with its stream's position. The first failure ends it.

    However it ends, every stream that had begun is closed then.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as stream:
            async for item in stream:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(i, stream, queue)) for i, stream in enumerate(streams)]
    num_open = len(pumps)
    try:
        while num_open:
            news = await queue.get()
            if news is None:
                num_open -= 1
            elif isinstance(news, Exception):
                raise news
            else:
                yield news
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    position: int, stream: AsyncGenerator[T, None], queue: asyncio.Queue[tuple[int, T] | Exception | None]
) -> None:
    try:
        async with aclosing(stream):
            async for item in stream:
                queue.put_nowait((position, item))
    except Exception as error:
        queue.put_nowait(error)
    else:
        queue.put_nowait(None)
