"""``python -m tests.engine.core_parent STAGE``: a parent of a core process, brought to a stage, then left there.

Prints the child's process id once the stage is reached. On SIGTERM it drains and prints how its request ended.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time

from corefw.engine.process import CoreProcess


def main(stage: str) -> None:
    process = spawn_on_a_thread() if stage == "threaded" else CoreProcess.spawn(preload=())
    if stage == "spawned":
        report(process.pid)
        time.sleep(60)
    asyncio.run(run(process, stage))


def spawn_on_a_thread() -> CoreProcess:
    """The kernel's death signal can't be used then."""
    spawned: list[CoreProcess] = []
    thread = threading.Thread(target=lambda: spawned.append(CoreProcess.spawn(preload=())))
    thread.start()
    thread.join()
    return spawned[0]


def report(pid: int) -> None:
    print(pid, flush=True)


async def run(process: CoreProcess, stage: str) -> None:
    from corefw.engine.async_engine import AsyncEngine
    from tests.engine.fake_engine import config, request

    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, terminated.set)
    process.configure(config(model="fake:slow" if stage == "loading" else "fake"))
    if stage == "loading":
        await process.connect(lambda name: report(process.pid) if name == "loading the model" else None)
    engine = AsyncEngine(await process.connect())
    stream = engine.submit(request("a", 20, delay_s=60 if stage == "stuck" else 0.05))
    if stage == "running":
        await anext(stream)
    else:
        await asyncio.sleep(0.2)
    report(process.pid)
    await terminated.wait()
    await engine.shutdown(drain_s=20)
    outputs = [output async for output in stream]
    print(sum(len(output.new_token_ids) for output in outputs), outputs[-1].finish_reason, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
