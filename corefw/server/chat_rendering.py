"""Rendering chats beside the event loop, slow ones beside the others."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from corefw.frontend.renderer import SlowChatError

if TYPE_CHECKING:
    from corefw.frontend.renderer import Renderer

__all__ = ["render_chat"]

_QUICK = ThreadPoolExecutor(4, thread_name_prefix="chat")
# A template may take seconds before it is stopped. This thread waits for it; whoever else is slow waits in turn, and
# leaves the row when its client goes.
_SLOW = ThreadPoolExecutor(1, thread_name_prefix="slow-chat")


async def render_chat(renderer: Renderer, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
    """``renderer.render_chat`` without holding up the event loop, however short the messages are.

    Raises:
        RequestError: as the renderer does.
    """
    loop = asyncio.get_running_loop()
    try:
        return await loop.run_in_executor(
            _QUICK, functools.partial(renderer.render_chat, messages, lane="quick", **options)
        )
    except SlowChatError as slow:
        return await loop.run_in_executor(_SLOW, slow.finish)
