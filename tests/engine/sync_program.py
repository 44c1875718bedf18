"""``python -m tests.engine.sync_program WAY``: a program with a core in a process of its own, that ends in some way.

Prints the core's process id when its request has begun, and what became of it where the program goes on.
"""

from __future__ import annotations

import gc
import os
import sys

from corefw.engine.clients.sync import SyncClient
from corefw.engine.process import CoreProcess
from corefw.errors import EngineDeadError
from tests.engine.fake_engine import config, request


def main(way: str) -> None:
    process = CoreProcess.spawn(preload=())
    process.configure(config())
    client = SyncClient(process.connect)
    client.add_request(request("a", 1000, delay_s=0.05))
    while not client.step().outputs:
        pass
    print(process.pid, flush=True)
    if way == "raises":
        raise LookupError("the program's own")
    if way == "forks":
        if child := os.fork():
            os.waitpid(child, 0)
        else:
            sys.exit(0)
    if way == "forgets":
        del client
        gc.collect()
        print(process.exit_text(), flush=True)
        return
    try:
        while client.has_work():
            client.step()
            if way == "forks":
                print(process.exit_text(), flush=True)
                return
    except EngineDeadError as error:
        print(error, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
