from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from corefw.engine.clients.connection_watch import ConnectionWatch


@pytest.fixture
def listening() -> Iterator[zmq.Socket[bytes]]:
    context = zmq.Context()
    yield context.socket(zmq.PULL)
    context.destroy(linger=0)


def test_only_the_end_of_the_connection_that_is_followed_counts(listening: zmq.Socket[bytes]) -> None:
    watch = ConnectionWatch(listening)
    listening.bind("tcp://127.0.0.1:0")
    others = zmq.Context()

    def connected() -> zmq.Socket[bytes]:
        one = others.socket(zmq.PUSH)
        one.connect(listening.getsockopt_string(zmq.LAST_ENDPOINT))
        one.send(b"hello")
        return one

    stranger = connected()
    listening.recv()
    followed = connected()
    watch.follow(listening.recv(copy=False))
    stranger.close()
    assert watch.source.poll(10_000)
    assert not watch.has_ended()
    followed.close()
    assert watch.source.poll(10_000)
    assert watch.has_ended()
    watch.close()
    watch.close()
    others.term()
