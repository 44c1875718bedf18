from __future__ import annotations

import asyncio
import threading

import pytest

from corefw.engine.clients.base import Mailbox
from corefw.errors import EngineDeadError
from corefw.messages.outputs import EngineCoreOutput, EngineCoreOutputs


def numbered(number: int) -> EngineCoreOutputs:
    return EngineCoreOutputs(outputs=[EngineCoreOutput(request_id=str(number))])


async def test_outputs_arrive_in_order_from_another_thread() -> None:
    mailbox = Mailbox()

    def post_all() -> None:
        for number in range(200):
            mailbox.put(numbered(number))

    thread = threading.Thread(target=post_all)
    thread.start()
    async with asyncio.timeout(5):
        received = [await mailbox.get() for _ in range(200)]
    thread.join()
    assert received == [numbered(number) for number in range(200)]


async def test_the_end_is_told_after_everything_before_it_and_then_every_time() -> None:
    mailbox = Mailbox()
    mailbox.put(numbered(1))
    mailbox.fail(EngineDeadError("gone"))
    assert await mailbox.get() == numbered(1)
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="gone"):
            await mailbox.get()


async def test_the_end_wakes_who_waits() -> None:
    mailbox = Mailbox()
    waiting = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    thread = threading.Thread(target=mailbox.fail, args=(EngineDeadError("gone"),))
    thread.start()
    with pytest.raises(EngineDeadError, match="gone"):
        await asyncio.wait_for(waiting, 5)
    thread.join()


def test_outputs_for_a_loop_that_has_been_closed_are_dropped() -> None:
    async def make() -> Mailbox:
        return Mailbox()

    mailbox = asyncio.run(make())
    mailbox.put(numbered(1))
    mailbox.fail(EngineDeadError("gone"))
