"""A large array from one process to another: as a ZMQ frame beside its message, or in a memfd over a Unix socket.

    python benchmarks/large_arrays.py

Prints, by size, the least milliseconds until the sender may go on (``send``) and until the receiver has read every page
(``read``).
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import zmq

_PAGE = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 4, 16, 64], metavar="MIB")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        _receive(arguments.child[0], socket.socket(fileno=int(arguments.child[1])))
        return
    print(json.dumps(_measure(arguments.repeats, arguments.sizes), indent=2))


def _measure(repeats: int, sizes: Sequence[int]) -> dict[str, dict[str, dict[str, float]]]:
    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{folder}/frames"
        frames = zmq.Context.instance().socket(zmq.PAIR)
        frames.bind(address)
        ours, theirs = socket.socketpair()
        command = [sys.executable, str(Path(__file__)), "--child", address, str(theirs.fileno())]
        child = subprocess.Popen(command, pass_fds=(theirs.fileno(),))
        try:
            return {
                f"{size} MiB": {
                    "zmq": _timed(
                        repeats, size, lambda data: frames.send_multipart([b"frame", data], copy=False), frames
                    ),
                    "memfd": _timed(repeats, size, lambda data: _send_memfd(data, ours, frames), frames),
                }
                for size in sizes
            }
        finally:
            frames.send_multipart([b"stop", b""])
            child.wait(10)


def _timed(
    repeats: int, size_mib: int, send: Callable[[bytes], object], answers: zmq.Socket[bytes]
) -> dict[str, float]:
    sent, read = [], []
    for _ in range(repeats + 2):
        data = np.random.default_rng(0).bytes(size_mib * 2**20)
        start_s = time.perf_counter()
        send(data)
        sent.append(time.perf_counter() - start_s)
        answer = int(answers.recv())
        read.append(time.perf_counter() - start_s)
        assert answer == int(np.frombuffer(data, dtype=np.uint8)[::_PAGE].sum(dtype=np.int64))
    return {
        "send_ms": round(min(sent) * 1e3, 2),
        "read_ms": round(min(read) * 1e3, 2),
    }


def _send_memfd(data: bytes, control: socket.socket, frames: zmq.Socket[bytes]) -> None:
    fd = os.memfd_create("array")
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    socket.send_fds(control, [b"x"], [fd])
    os.close(fd)
    frames.send_multipart([b"memfd", b""])


def _receive(address: str, control: socket.socket) -> None:
    frames = zmq.Context.instance().socket(zmq.PAIR)
    frames.connect(address)
    while True:
        kind, frame = frames.recv_multipart(copy=False)
        if kind.bytes == b"stop":
            return
        if kind.bytes == b"memfd":
            _, (fd, *_), *_ = socket.recv_fds(control, 1, 1)
            pages = mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ)
            os.close(fd)
            data = np.frombuffer(pages, dtype=np.uint8)
        else:
            data = np.frombuffer(frame.buffer, dtype=np.uint8)
        frames.send(b"%d" % int(data[::_PAGE].sum(dtype=np.int64)))


if __name__ == "__main__":
    main()
