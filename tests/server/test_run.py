"""Signals, drain, and the end of a server whose engine died: in a process of its own."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from corefw.config.engine_config import ServerConfig
from corefw.server.app import create_app
from corefw.server.listener import listen_on
from corefw.server.run import serve
from tests.server.serving import builtin_endpoints, make_state, scripted


@dataclass
class Child:
    process: subprocess.Popen[str]
    url: str
    log: list[str]

    def ask(self, num_tokens: int, *, stream: bool = False) -> tuple[threading.Thread, list[Any]]:
        """Send a request from a thread; its answer lands in the list."""
        answers: list[Any] = []

        def send() -> None:
            body = {"prompt": "a", "max_tokens": num_tokens, "stream": stream}
            try:
                answers.append(httpx.post(f"{self.url}/v1/completions", json=body, timeout=30))
            except httpx.HTTPError as error:
                answers.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        time.sleep(0.4)
        return thread, answers

    def signal_and_wait(self, *numbers: signal.Signals) -> tuple[int, float]:
        """Exit status and seconds after the first signal."""
        started = time.monotonic()
        for number in numbers:
            self.process.send_signal(number)
            time.sleep(0.25)
        return self.process.wait(20), time.monotonic() - started


@contextmanager
def child(**settings: float) -> Iterator[Child]:
    argument = json.dumps({"delay_s": 0.01, "shutdown_timeout": 10.0, **settings})
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.server.scripted_server", argument],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    log: list[str] = []
    errors = process.stderr
    reader = threading.Thread(target=lambda: log.extend(errors))
    reader.start()
    try:
        found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert found, "".join(log)
        yield Child(process, found.group(), log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join(5)
        process.stdout.close()
        errors.close()
    assert not any("Traceback" in line for line in log), "".join(log)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_ends_at_once_with_status_zero(number: signal.Signals) -> None:
    with child() as server:
        assert httpx.get(f"{server.url}/health").status_code == 200
        status, seconds = server.signal_and_wait(number)
    assert status == 0
    assert seconds < 3


def test_a_running_request_finishes_and_nobody_new_gets_in() -> None:
    with child() as server:
        thread, answers = server.ask(100)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.4)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health")
        assert server.process.wait(20) == 0
        thread.join()
    (answer,) = answers
    assert isinstance(answer, httpx.Response)
    assert answer.json()["usage"]["completion_tokens"] == 100


@pytest.mark.parametrize("stream", [False, True])
def test_after_the_drain_requests_end_with_an_error(stream: bool) -> None:
    with child(shutdown_timeout=0.5) as server:
        thread, answers = server.ask(10_000, stream=stream)
        status, seconds = server.signal_and_wait(signal.SIGTERM)
        thread.join()
    assert status == 0
    assert seconds < 4
    (answer,) = answers
    assert isinstance(answer, httpx.Response)
    if stream:
        assert "shutting down" in answer.text.rsplit("data: ", 1)[1]
        assert '"finish_reason":"' not in answer.text
    else:
        assert answer.status_code == 503
        assert "shutting down" in answer.json()["error"]["message"]


def test_a_second_signal_ends_at_once() -> None:
    with child(shutdown_timeout=30) as server:
        thread, answers = server.ask(10_000)
        status, seconds = server.signal_and_wait(signal.SIGTERM, signal.SIGTERM)
        thread.join()
    assert status == 0
    assert seconds < 3
    assert len(answers) == 1


def test_a_server_whose_engine_died_says_so_for_a_while_and_ends_with_an_error() -> None:
    with child(dies_after_s=1.0) as server:
        statuses = []
        deadline = time.monotonic() + 8
        while server.process.poll() is None and time.monotonic() < deadline:
            try:
                statuses.append(httpx.get(f"{server.url}/health", timeout=2).status_code)
            except httpx.TransportError:
                break
            time.sleep(0.1)
        assert server.process.wait(10) == 1
    assert statuses[0] == 200
    assert 503 in statuses
    assert any("engine core died" in line for line in server.log)


def test_requests_that_are_not_whole_do_not_hold_up_the_end() -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
    with child(shutdown_timeout=10) as server:
        address = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
        with (
            socket.create_connection(address, timeout=5) as half,
            socket.create_connection(address, timeout=5) as begun,
        ):
            half.sendall(head + b'\r\n{"prompt"')
            begun.sendall(head)
            time.sleep(0.5)
            status, seconds = server.signal_and_wait(signal.SIGTERM)
            answer = b"".join(iter(lambda: half.recv(65536), b""))
            assert begun.recv(65536) == b""
    assert status == 0
    assert seconds < 4
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"shutting down" in answer
    assert not any("CancelledError" in line for line in server.log)


def test_a_client_that_does_not_read_its_last_words_does_not_hold_up_the_end() -> None:
    body = json.dumps({"prompt": ["a"] * 200, "max_tokens": 10_000, "stream": True, "request_id": "r" * 200}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with child(shutdown_timeout=0.5, delay_s=0.001) as server:
        address = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
        with socket.create_connection(address, timeout=5) as connection:
            connection.sendall(head % len(body) + body)
            time.sleep(4)
            status, seconds = server.signal_and_wait(signal.SIGTERM)
    assert status == 0
    assert seconds < 6
    assert not any("CancelledError" in line for line in server.log)


async def test_the_engine_is_shut_down_when_the_server_cannot_be_built() -> None:
    engine = scripted()
    config = ServerConfig(port=0)
    listener = listen_on(config)
    listener.close()  # has no address any more
    num_shutdowns = 0

    async def shut_down() -> None:
        nonlocal num_shutdowns
        num_shutdowns += 1

    app = create_app(make_state(engine, config), builtin_endpoints())
    with pytest.raises(OSError, match="Bad file descriptor"):
        await serve(app, listener, config, shut_down)
    assert num_shutdowns == 1


def test_at_the_end_a_running_request_is_answered_and_one_behind_it_is_not() -> None:
    body = b'{"prompt": "a", "max_tokens": 100}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with child(shutdown_timeout=10) as server:
        address = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
        with socket.create_connection(address, timeout=10) as connection:
            connection.sendall(head % len(body) + body + head % 100 + b'{"prompt"')
            time.sleep(0.4)
            status, seconds = server.signal_and_wait(signal.SIGTERM)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert status == 0
    assert seconds < 6
    assert answer.count(b"HTTP/1.1") == 1
    assert b'"completion_tokens":100' in answer
