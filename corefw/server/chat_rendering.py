"""Rendering chats beside the event loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corefw.frontend.renderer import Renderer

__all__ = ["render_chat"]

# A template may take seconds before it is stopped. These threads wait for it, and no other work waits for them.
_THREADS = ThreadPoolExecutor(4, thread_name_prefix="chat")


async def render_chat(renderer: Renderer, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
    """``renderer.render_chat`` without holding up the event loop, however short the messages are.

    Raises:
        RequestError: as the renderer does.
    """
    call = functools.partial(renderer.render_chat, messages, **options)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, call)
