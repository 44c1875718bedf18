"""The ready line: standard output in every bad state leaves the server as it is."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import httpx


def start(stdout: int | IO[str], before: Callable[[], Any] | None = None) -> subprocess.Popen[str]:
    argument = json.dumps({"delay_s": 0.01, "shutdown_timeout": 1.0})
    command = [sys.executable, "-m", "tests.server.scripted_server", argument]
    return subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True, preexec_fn=before)


def outcome(process: subprocess.Popen[str]) -> tuple[int, list[int], str]:
    """Exit status, statuses of answers, log: of a server that is asked something and then told to end."""
    assert process.stderr is not None
    log: list[str] = []
    errors = process.stderr
    url = ""
    for line in errors:
        log.append(line)
        if found := re.search(r"serving .* on (http://127\.0\.0\.1:\d+)", line):
            url = found.group(1)
            break
    reader = threading.Thread(target=lambda: log.extend(errors))
    reader.start()
    try:
        time.sleep(0.3)
        statuses = [httpx.get(f"{url}/health", timeout=5).status_code]
        process.send_signal(signal.SIGTERM)
        status = process.wait(20)
    finally:
        process.kill()
        process.wait()
        reader.join(5)
        errors.close()
    return status, statuses, "".join(log)


def check_survival(process: subprocess.Popen[str], *, num_warnings: int) -> None:
    status, statuses, log = outcome(process)
    assert (status, statuses) == (0, [200]), log
    assert log.count("could not write the ready line") == num_warnings, log
    assert "Traceback" not in log
    assert "Fatal" not in log
    assert "Exception" not in log


def test_a_closed_output_is_one_warning() -> None:
    check_survival(start(subprocess.DEVNULL, lambda: os.close(1)), num_warnings=1)


def test_a_full_device_is_one_warning() -> None:
    with Path("/dev/full").open("w") as full:
        check_survival(start(full), num_warnings=1)


def test_a_pipe_without_a_reader_is_one_warning() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        process = start(writing)
    finally:
        os.close(writing)
    check_survival(process, num_warnings=1)


def test_a_full_pipe_that_nobody_reads_blocks_nobody() -> None:
    reading, writing = os.pipe()
    try:
        fcntl.fcntl(writing, fcntl.F_SETFL, os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while os.write(writing, b"x" * 4096):
                pass
        fcntl.fcntl(writing, fcntl.F_SETFL, 0)
        check_survival(start(writing), num_warnings=0)
    finally:
        os.close(reading)
        os.close(writing)
