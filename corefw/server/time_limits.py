"""What plugins do when the server starts and stops, for so long and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from corefw.plugin_system.blame import told

__all__ = ["START_LIMIT_S", "STOP_LIMIT_S", "within"]

START_LIMIT_S = 30.0
STOP_LIMIT_S = 5.0
_CANCELLED_S = 1.0


async def within(limit_s: float, call: Callable[[], Awaitable[None]]) -> None:
    """Await a call; one that takes too long is cancelled, and left to itself where it doesn't heed that.

    What blocks the event loop can't be interrupted.

    Raises:
        TimeoutError: it took longer than ``limit_s``.
        Exception: whatever the call raised; a RuntimeError in place of SystemExit, which would end the event loop.
    """
    task = asyncio.create_task(_called(call))
    try:
        _, late = await asyncio.wait({task}, timeout=limit_s)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not late:
        return task.result()
    task.add_done_callback(_forget)
    task.cancel()
    await asyncio.wait(late, timeout=_CANCELLED_S)
    raise TimeoutError(f"it took longer than {limit_s:g} s")


async def _called(call: Callable[[], Awaitable[None]]) -> None:
    # In a task from its first line on: what isn't a coroutine function, too, fails there alone.
    try:
        await call()
    except SystemExit as error:
        raise RuntimeError(told(error)) from error


def _forget(task: asyncio.Task[None]) -> None:
    """What it raised after its time isn't news."""
    if not task.cancelled():
        task.exception()
