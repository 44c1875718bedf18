from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.errors import EngineDeadError
from corefw.messages.codec import Frame
from corefw.runtime.distributed.broadcast_queue import BroadcastReader, BroadcastWriter, QueueFds

_CAPACITY = 4096

_CHILD = """
import sys
from corefw.errors import EngineDeadError
from corefw.runtime.distributed.broadcast_queue import BroadcastReader, BroadcastWriter, QueueFds
requests, answers, watched = (QueueFds.from_text(text) for text in sys.argv[1:4])
reader = BroadcastReader(requests, lambda frames: [bytes(frame) for frame in frames], [watched.memory])
writer = BroadcastWriter(answers)
try:
    while True:
        writer.send(reader.receive())
except EngineDeadError as error:
    print(error, end="")
"""


def _copied(frames: Sequence[Frame]) -> list[bytes]:
    return [bytes(frame) for frame in frames]


class _Queue:
    def __init__(self, num_readers: int = 1, capacity: int = _CAPACITY) -> None:
        self.fds = QueueFds.create(num_readers, capacity)
        self.gone, self._end = os.pipe()
        self.writer = BroadcastWriter(self.fds, [self.gone])
        self.readers = [
            BroadcastReader(self.fds.of_reader(index), _copied, [self.gone]) for index in range(num_readers)
        ]

    def other_side_dies(self) -> None:
        os.close(self._end)
        self._end = -1

    def close(self) -> None:
        for end in (self.writer, *self.readers, self.fds):
            end.close()
        os.close(self.gone)
        if self._end >= 0:
            os.close(self._end)


@pytest.fixture
def queue() -> Iterator[_Queue]:
    queue = _Queue(num_readers=2)
    yield queue
    queue.close()


def test_every_reader_gets_every_message_in_order(queue: _Queue) -> None:
    sent = [[b"first"], [b"second", b"", b"with frames"], [b""]]
    for frames in sent:
        queue.writer.send(frames)
    for reader in queue.readers:
        assert [reader.receive() for _ in sent] == sent
        assert not reader.ready()


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.lists(st.integers(0, 3 * _CAPACITY), min_size=1, max_size=3), min_size=1, max_size=30))
def test_messages_of_any_size_go_round_the_ring(sizes: list[list[int]]) -> None:
    sent = [[os.urandom(size) for size in frames] for frames in sizes]
    queue = _Queue(num_readers=3)
    received: list[list[list[bytes]]] = [[] for _ in queue.readers]

    def read(index: int) -> None:
        received[index] = [queue.readers[index].receive(10.0) for _ in sent]

    threads = [threading.Thread(target=read, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for frames in sent:
        queue.writer.send(frames)
    for thread in threads:
        thread.join()
    assert received == [sent] * 3
    queue.close()


def test_a_small_message_is_decoded_where_it_lies_and_large_frames_outlive_it() -> None:
    fds = QueueFds.create(1, _CAPACITY)
    seen: list[Frame] = []

    def decode(frames: Sequence[Frame]) -> bytes:
        seen.extend(frames)
        return bytes(frames[1])

    reader, writer = BroadcastReader(fds, decode), BroadcastWriter(fds)
    writer.send([b"message", b"array"])
    assert reader.receive() == b"array"
    assert isinstance(seen[0], memoryview)
    with pytest.raises(ValueError, match="released"):
        bytes(seen[0])
    for _ in range(100):
        writer.send([b"another", b"overwritten" * 10])
        reader.receive()
    assert bytes(seen[1]) == b"array"
    for end in (reader, writer, fds):
        end.close()


def test_a_message_that_cannot_be_decoded_does_not_block_the_next_one() -> None:
    fds = QueueFds.create(1, _CAPACITY)
    reader, writer = BroadcastReader(fds, lambda frames: int(bytes(frames[0]))), BroadcastWriter(fds)
    writer.send([b"no number"])
    writer.send([b"7"])
    with pytest.raises(ValueError, match="invalid literal"):
        reader.receive()
    assert reader.receive() == 7
    for end in (reader, writer, fds):
        end.close()


def test_a_reader_that_waits_notices_the_writers_death_after_taking_what_was_sent(queue: _Queue) -> None:
    queue.writer.send([b"last words"])
    queue.other_side_dies()
    assert queue.readers[0].receive() == [b"last words"]
    with pytest.raises(EngineDeadError, match="writer"):
        queue.readers[0].receive()


def test_a_writer_without_room_notices_a_readers_death(queue: _Queue) -> None:
    for _ in range(2):
        queue.writer.send([b"x" * 1500])
    threading.Timer(0.05, queue.other_side_dies).start()
    with pytest.raises(EngineDeadError, match="reader"):
        queue.writer.send([b"x" * 1500])


def test_a_writer_without_room_looks_after_other_work(queue: _Queue) -> None:
    taken: list[list[bytes]] = []
    for _ in range(10):
        queue.writer.send([b"x" * 1500], idle=lambda: taken.extend(reader.receive() for reader in queue.readers))
    assert len(taken) == 2 * 8


def test_a_reader_says_when_nothing_comes(queue: _Queue) -> None:
    with pytest.raises(TimeoutError):
        queue.readers[0].receive(timeout_s=0.02)


def test_the_memory_cannot_be_taken_away_from_the_other_process(queue: _Queue) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(queue.fds.memory, 0)


def test_two_processes_talk_and_the_child_sees_its_parent_end_the_queue() -> None:
    requests, answers = QueueFds.create(1, _CAPACITY), QueueFds.create(1, _CAPACITY)
    gone, end = os.pipe()
    arguments = [requests.to_text(), answers.to_text(), str(gone)]
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", _CHILD, *arguments],
        pass_fds=(*requests.all(), *answers.all(), gone),
        stdout=subprocess.PIPE,
    )
    exit_fd = os.pidfd_open(child.pid)
    writer, reader = BroadcastWriter(requests, [exit_fd]), BroadcastReader(answers, _copied, [exit_fd])
    for size in (1, 100, _CAPACITY // 2, 5 * _CAPACITY, 3):
        writer.send([b"x" * size, b"y"])
        assert reader.receive(30.0) == [b"x" * size, b"y"]
    os.close(end)
    assert child.communicate(timeout=30)[0] == b"the writer of the broadcast queue has gone"
    with pytest.raises(EngineDeadError):
        reader.receive()
    for each in (writer, reader, requests, answers):
        each.close()
    for fd in (exit_fd, gone):
        os.close(fd)
