"""Merging streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from corefw.frontend.merging import merge


async def counting(name: str, num_items: int, closed: list[str], delay_s: float = 0) -> AsyncGenerator[str, None]:
    try:
        for i in range(num_items):
            await asyncio.sleep(delay_s)
            yield f"{name}{i}"
    finally:
        closed.append(name)


async def failing() -> AsyncGenerator[str, None]:
    await asyncio.sleep(0.01)
    yield "f0"
    raise ValueError("broken")


async def test_items_come_from_all_streams_in_each_ones_order() -> None:
    closed: list[str] = []
    items = [item async for item in merge([counting("a", 3, closed), counting("b", 2, closed)])]
    assert [text for i, text in items if i == 0] == ["a0", "a1", "a2"]
    assert [text for i, text in items if i == 1] == ["b0", "b1"]
    assert len(items) == 5


async def test_a_fast_stream_does_not_wait_for_a_slow_one() -> None:
    closed: list[str] = []
    async with aclosing(merge([counting("slow", 5, closed, 10), counting("fast", 3, closed)])) as merged:
        items = [(await anext(merged))[1] for _ in range(3)]
    assert items == ["fast0", "fast1", "fast2"]


async def test_the_first_failure_ends_it_and_stops_the_others() -> None:
    closed: list[str] = []
    with pytest.raises(ValueError, match="broken"):
        async for _ in merge([counting("a", 10**6, closed, 0.001), failing()]):
            pass
    assert closed == ["a"]


async def test_closing_early_stops_every_stream() -> None:
    closed: list[str] = []
    async with aclosing(merge([counting("a", 10, closed), counting("b", 10, closed)])) as merged:
        await anext(merged)
    assert sorted(closed) == ["a", "b"]


async def test_one_stream_is_closed_as_well() -> None:
    closed: list[str] = []
    async with aclosing(merge([counting("a", 10, closed)])) as merged:
        assert await anext(merged) == (0, "a0")
    assert closed == ["a"]
