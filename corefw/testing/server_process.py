"""A real server in a real process, for tests of the core and of packs. Needs httpx."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from corefw.env import child_environment

__all__ = ["Server", "descendants", "is_alive", "launch", "serving", "stop", "wait_until"]

START_LIMIT_S = 300.0


@dataclass
class Server:
    """A running ``corefw serve``."""

    process: subprocess.Popen[bytes]
    log_path: Path
    port: int
    start_s: float

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def children(self) -> list[int]:
        """Process ids of all descendants that still live."""
        return descendants(self.process.pid)

    def running(self, module: str) -> list[int]:
        """Process ids of the descendants that run a module of ours."""
        found = []
        for pid in self.children():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has just gone
                if module in Path(f"/proc/{pid}/cmdline").read_text():
                    found.append(pid)
        return found

    def metric(self, name: str) -> float:
        """A metric: of one set of labels if ``name`` has them, else summed over all."""
        text = httpx.get(f"{self.url}/metrics", timeout=60).text
        labels = "" if "{" in name else r"(?:{[^}]*})?"
        values = re.findall(rf"^{re.escape(name)}{labels} ([0-9.e+-]+|NaN)$", text, re.MULTILINE)
        assert values, f"no metric {name}"
        return sum(float(value) for value in values)

    def wait_busy(self, limit_s: float = 30.0) -> None:
        """Wait until a request runs."""
        deadline = time.monotonic() + limit_s
        while not self.metric("corefw:num_requests_running"):
            assert time.monotonic() < deadline, "nothing runs"
            time.sleep(0.02)

    def wait_idle(self, limit_s: float = 10.0) -> None:
        """Wait until nothing runs and every KV block is free."""
        names = ("corefw:num_requests_running", "corefw:num_requests_waiting", "corefw:kv_cache_usage")
        deadline = time.monotonic() + limit_s
        while any(self.metric(name) for name in names):
            assert time.monotonic() < deadline, {name: self.metric(name) for name in names}
            time.sleep(0.05)


def wait_until(condition: Callable[[], object], limit_s: float = 120.0) -> None:
    """Ask again and again; AssertionError when it doesn't come about in time."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it doesn't come about"
        time.sleep(0.02)


def descendants(pid: int) -> list[int]:
    """Process ids of all children of a process, theirs included."""
    found: list[int] = []
    level = [pid]
    while level:
        level = [child for parent in level for child in _children(parent)]
        found += level
    return found


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except FileNotFoundError:
        return []


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _end_with_the_tests() -> None:
    """A test run that is killed leaves no server behind (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _environment() -> dict[str, str]:
    """As a shell starts a server, which itself sees to it that its children that compute get a heap of huge pages."""
    return {name: value for name, value in child_environment().items() if name != "GLIBC_TUNABLES"}


def launch(*flags: str, env: dict[str, str] | None = None) -> Server:
    """Start ``corefw serve`` on a free port and wait until it is ready."""
    handle, name = tempfile.mkstemp(suffix=".log", prefix="corefw-test-")
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "corefw.cli.main", "serve", "--port", "0", *flags],
        stdin=subprocess.DEVNULL,
        stdout=handle,
        stderr=handle,
        env={**_environment(), **(env or {})},
        start_new_session=True,
        preexec_fn=_end_with_the_tests,
    )
    os.close(handle)
    server = Server(process, Path(name), 0, 0.0)
    server.port = _wait_ready(server, started)
    server.start_s = time.monotonic() - started
    return server


def _wait_ready(server: Server, started: float) -> int:
    while time.monotonic() - started < START_LIMIT_S:
        if server.process.poll() is not None:
            raise AssertionError(f"the server ended with {server.process.returncode}:\n{server.log}")
        match = re.search(r"http://127\.0\.0\.1:(\d+)", server.log)
        if match and _healthy(int(match.group(1))):
            return int(match.group(1))
        time.sleep(0.02)
    log = server.log
    stop(server)
    raise AssertionError(f"the server was not ready in {START_LIMIT_S} s:\n{log}")


def _healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=5.0).status_code == 200
    except httpx.TransportError:
        return False


def stop(server: Server) -> int:
    """SIGTERM and wait; SIGKILL to what is left of the session."""
    if server.process.poll() is None:
        server.process.send_signal(signal.SIGTERM)
        try:
            server.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(server.process.pid, signal.SIGKILL)
            server.process.wait(10)
    server.log_path.unlink(missing_ok=True)
    return server.process.returncode


@contextmanager
def serving(*flags: str, env: dict[str, str] | None = None) -> Iterator[Server]:
    """A server for the length of a block."""
    server = launch(*flags, env=env)
    try:
        yield server
    finally:
        stop(server)
