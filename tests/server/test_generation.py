"""Work beside the event loop."""

from __future__ import annotations

import threading

from corefw.server.generation import off_loop


async def test_large_work_leaves_the_loop_free() -> None:
    assert await off_loop(10, threading.get_ident) == threading.get_ident()
    assert await off_loop(10**6, threading.get_ident) != threading.get_ident()
