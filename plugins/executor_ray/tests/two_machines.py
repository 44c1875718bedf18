"""Two network namespaces with a wire between them: to Ray they are two machines. Needs root and ``ip``."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["HOSTS", "TwoMachines", "can_be_made"]

HOSTS = ("10.77.0.1", "10.77.0.2")
_PORT = 6399
_RAY = str(Path(sysconfig.get_path("scripts")) / "ray")
_NODE = ("--num-cpus", "1", "--object-store-memory", str(80 * 2**20), "--disable-usage-stats")


def can_be_made() -> bool:
    """Whether this machine lets us."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare"))):
        return False
    return subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode == 0


class TwoMachines:
    """A Ray node with a CPU in each. A context manager; nothing is left at its end."""

    def __init__(self) -> None:
        self._names = [f"corefw-{os.getpid()}-{index}" for index in range(2)]
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> TwoMachines:
        with contextlib.ExitStack() as undo:
            for name in self._names:
                _ip("netns", "add", name)
                undo.callback(_ip, "netns", "delete", name)
                undo.callback(self._end_processes, name)
            self._connect()
            # A path of Ray's own sockets has to fit into 108 bytes.
            directory = undo.enter_context(
                tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
            )
            head = ("--head", "--port", str(_PORT), "--temp-dir", directory, "--include-dashboard", "false")
            self._run(0, [_RAY, "start", *head, "--node-ip-address", HOSTS[0], *_NODE])
            self._run(1, [_RAY, "start", "--address", self.address, "--node-ip-address", HOSTS[1], *_NODE])
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @property
    def address(self) -> str:
        """Of the cluster."""
        return f"{HOSTS[0]}:{_PORT}"

    def python(self, *words: str) -> str:
        """What a program says that runs on the first machine."""
        return self._run(0, [sys.executable, *words])

    def _connect(self) -> None:
        first, second = self._names
        _ip("link", "add", "wire", "netns", first, "type", "veth", "peer", "name", "wire", "netns", second)
        for name, host in zip(self._names, HOSTS, strict=True):
            _ip("-n", name, "address", "add", f"{host}/24", "dev", "wire")
            for device in ("lo", "wire"):
                _ip("-n", name, "link", "set", device, "up")

    def _run(self, machine: int, command: Sequence[str]) -> str:
        environment = {**os.environ, "RAY_ADDRESS": self.address}
        words = ["ip", "netns", "exec", self._names[machine], *command]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise AssertionError(f"{command} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
        return done.stdout

    def _end_processes(self, name: str) -> None:
        """Those that run in the namespace: nobody else has any there."""
        listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True)
        for pid in listed.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), 9)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
