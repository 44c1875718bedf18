from __future__ import annotations

import tempfile
import threading
import time

import zmq

from corefw.engine.core_sockets import CoreSockets
from corefw.messages.outputs import EngineCoreOutputs


def test_what_is_for_a_front_end_that_has_gone_is_dropped_and_nobody_waits_for_another() -> None:
    with tempfile.TemporaryDirectory(prefix="t-") as directory:
        addresses = [f"ipc://{directory}/{name}" for name in ("requests", "outputs")]
        front_end = zmq.Context()
        ends = [front_end.socket(kind) for kind in (zmq.ROUTER, zmq.PULL)]
        for end, address in zip(ends, addresses, strict=True):
            end.bind(address)
        sockets = CoreSockets(*addresses)
        for end in ends:  # so it is connected
            end.recv_multipart()
        front_end.destroy(linger=0)

        def send() -> None:
            for _ in range(40):  # the end of the connection becomes known on the way
                sockets.send_trouble("none")
                sockets.send(EngineCoreOutputs())
                sockets.send_dead("it is over")
                time.sleep(0.02)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        sender.join(30)
        assert not sender.is_alive()
        sockets.close()
