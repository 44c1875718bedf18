"""Does what data say, most of it wrong."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from corefw.interfaces.io_processor import IOContext, IOOutput, IOProcessor, IOPrompt

_PROMPT = IOPrompt(text="Hello")


class MisbehavingProcessor(IOProcessor):
    """``data`` is what to do."""

    name = "misbehaving"

    def parse(self, context: IOContext) -> None:
        """Fails by itself, or because of the client."""
        if context.request.data == "parse_bug":
            raise KeyError("secret")
        if context.request.data == "parse_value":
            raise ValueError("that is no value")

    def pre_process(self, context: IOContext) -> Any:
        """All kinds of things that may come out of it."""
        match context.request.data:
            case "single":
                return _PROMPT
            case "list":
                return [_PROMPT, IOPrompt(token_ids=[1, 2, 3])]
            case "generator":
                return _prompts()
            case "coroutine":
                return _later()
            case "none":
                return None
            case "empty":
                return []
            case "dict":
                return {"prompt": "Hello"}
            case "text":
                return "Hello"
            case "neither":
                return IOPrompt()
            case "bug":
                raise RuntimeError("secret")
            case "value":
                raise ValueError("secret")
            case "slow":
                time.sleep(1.0)
        return _PROMPT

    def post_process(self, context: IOContext, outputs: Sequence[Sequence[IOOutput]]) -> Any:
        """The number of prompts, or what isn't plain."""
        match context.request.data:
            case "set":
                return {1, 2}
            case "post_bug":
                raise RuntimeError("secret")
        return {"prompts": len(outputs)}


async def _prompts() -> AsyncIterator[IOPrompt]:
    yield _PROMPT


async def _later() -> IOPrompt:
    return _PROMPT
