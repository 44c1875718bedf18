"""Sends the requests of a benchmark and notes when each token comes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from corefw.cli.bench.prompts import BenchPrompt
from corefw.cli.client.transport import EventSplitter, Transport, TransportError, error_message

__all__ = ["Load", "Measured", "run_load", "send_one"]


class _Choice(msgspec.Struct):
    """Of a chunk of either route, what counts as output."""

    text: str = ""
    delta: dict[str, Any] = {}


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: dict[str, Any] | None = None


_CHUNK = msgspec.json.Decoder(_Chunk)


@dataclass(slots=True)
class Measured:
    """One request.

    Attributes:
        sent_s: when it was sent, after the benchmark's start.
        ttft_s: until the first token.
        itl_s: between chunks that carry text, one after another.
        latency_s: until the end.
        num_prompt_tokens, num_output_tokens: as the server says; without usage chunks are counted.
        error: why it failed, empty when it didn't.
    """

    sent_s: float = 0.0
    ttft_s: float = 0.0
    itl_s: list[float] = field(default_factory=list)
    latency_s: float = 0.0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is sent, and where to.

    Attributes:
        path: the route.
        chat: whether it takes messages.
        fields: of every request, besides prompt and length.
    """

    path: str
    chat: bool
    fields: dict[str, Any]

    def body(self, prompt: BenchPrompt) -> bytes:
        """A request's body."""
        content: dict[str, Any] = {"prompt": prompt.prompt}
        if self.chat:
            content = {"messages": [{"role": "user", "content": prompt.prompt}]}
        return msgspec.json.encode(
            {**content, **self.fields, "max_tokens": prompt.max_tokens, "stream": True,
             "stream_options": {"include_usage": True}}
        )  # fmt: skip


async def run_load(
    transport: Transport,
    load: Load,
    prompts: Sequence[BenchPrompt],
    times_s: Sequence[float],
    max_concurrency: int | None,
    on_end: Callable[[], None],
) -> tuple[list[Measured], float]:
    """Send every prompt at its time, at most ``max_concurrency`` at once; measurements in their order, and seconds."""
    bodies = [load.body(prompt) for prompt in prompts]  # made before, so that sending is all that happens in time
    room = asyncio.Semaphore(max_concurrency) if max_concurrency else contextlib.nullcontext()
    start_s = time.perf_counter()

    async def one(body: bytes) -> Measured:
        async with room:
            measured = await send_one(transport, load.path, body, start_s)
        on_end()
        return measured

    tasks = []
    async with asyncio.TaskGroup() as group:
        for body, at_s in zip(bodies, times_s, strict=True):
            wait_s = start_s + at_s - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            tasks.append(group.create_task(one(body)))
    return [task.result() for task in tasks], time.perf_counter() - start_s


async def send_one(transport: Transport, path: str, body: bytes, start_s: float) -> Measured:
    """One request from sending to its last chunk. What goes wrong is in the result."""
    begin_s = time.perf_counter()
    measured = Measured(sent_s=begin_s - start_s)
    try:
        answer = await transport.send("POST", path, body)
        if answer.status != 200:
            measured.error = f"{answer.status}: {error_message(await answer.read())}"
            return measured
        splitter = EventSplitter()
        last_s = begin_s
        num_chunks = 0
        async with contextlib.aclosing(answer.chunks) as chunks:
            async for data in chunks:
                now_s = time.perf_counter()
                for event in splitter.push(data):
                    if _saw_text(event, measured):
                        if num_chunks:
                            measured.itl_s.append(now_s - last_s)
                        else:
                            measured.ttft_s = now_s - begin_s
                        num_chunks += 1
                        last_s = now_s
        measured.latency_s = time.perf_counter() - begin_s
        measured.num_output_tokens = measured.num_output_tokens or num_chunks
        if not num_chunks:  # tokens without text, such as control tokens
            measured.ttft_s = measured.latency_s
            measured.error = measured.error or ("" if measured.num_output_tokens else "no output came")
    except (TransportError, msgspec.DecodeError) as error:
        measured.error = str(error)
    return measured


def _saw_text(event: bytes, measured: Measured) -> bool:
    """Whether the event carries output; usage and errors are noted."""
    if event == b"[DONE]":
        return False
    chunk = _CHUNK.decode(event)
    if chunk.error is not None:
        measured.error = error_message(event)
    if chunk.usage is not None:
        measured.num_prompt_tokens = chunk.usage.prompt_tokens
        measured.num_output_tokens = chunk.usage.completion_tokens
    return any(choice.text or choice.delta.get("content") for choice in chunk.choices)
