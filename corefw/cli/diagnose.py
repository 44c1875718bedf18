"""``corefw diagnose comm``: can ranks talk to one another on this machine, and if not, which layer is at fault?"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import msgspec

from corefw import env
from corefw.errors import ConfigError
from corefw.plugin_system.manager import PluginManager
from corefw.runtime.distributed.broadcast_queue import BroadcastWriter, QueueFds
from corefw.runtime.distributed.comm_check import CheckTask, LayerNews
from corefw.runtime.distributed.rendezvous import LocalMeeting
from corefw.runtime.distributed.shared_memory import shared_memory_problem

__all__ = ["Layer", "add_arguments", "run"]

_NCCL_BYTES = 2**30  # what NVIDIA advises to give containers: --shm-size=1g
_MESSAGE_BYTES = 2**20
_MAX_RANKS = 64
_MAX_TIMEOUT_S = 3600.0
_START_S = 60.0  # until a child has imported torch
_TITLES = {
    "torch": "torch.distributed",
    "queue": "corefw's queue to workers",
    "meeting": "meeting on this machine",
    "gloo": "gloo on this machine",
    "device": "the platform's devices",
    "network": "gloo by the machine's name",
    "shm": "shared memory in files",
}
_REMEDIES = {
    "torch": "install torch as https://pytorch.org says, in the environment in which corefw runs",
    "queue": "memfd and eventfd have to be allowed (seccomp profile of the container), and memory has to be free",
    "meeting": "processes of one user have to reach each other's /proc/PID/fd: look for hidepid and security modules",
    "gloo": "127.0.0.1 has to be up (ip link set lo up), and no firewall or proxy in between",
    "device": "a link between devices is at fault: try NCCL_DEBUG=INFO, NCCL_P2P_DISABLE=1, and look at /dev/shm",
    "network": "only several machines need it: the name has to resolve to an address that others reach (/etc/hosts), "
    "and a firewall has to let ranks through",
    "shm": "",
}
_OPTIONAL = ("network", "shm")  # not needed by ranks on one machine that compute in host memory


@dataclass(frozen=True, slots=True)
class Layer:
    """What came of a layer.

    Attributes:
        name: of the layer.
        state: ``ok``, ``failed``, ``warning`` (failed, but ranks on one machine do without), ``not here``, or
            ``not tried``.
        told: what was seen.
        remedy: what to do, where something is wrong.
        seconds: of the slowest rank.
    """

    name: str
    state: str
    told: str = ""
    remedy: str = ""
    seconds: float = 0.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``corefw diagnose``."""
    what = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    comm = what.add_parser("comm", help="try how ranks talk to one another, layer by layer")
    comm.add_argument("--ranks", type=int, default=2, metavar="N", help="processes to try it with, from 2 to 64")
    comm.add_argument("--timeout", type=float, default=20.0, metavar="S", help="seconds that an operation may take")
    comm.add_argument("--plugins", default=None, metavar="LIST", help="which plugins may be loaded, as for serve")
    comm.add_argument("--json", action="store_true", help="print JSON")


def run(namespace: argparse.Namespace) -> int:
    """Try, and print what came of it; the exit status is 1 where ranks can't work."""
    if not 2 <= namespace.ranks <= _MAX_RANKS:
        raise ConfigError(f"--ranks {namespace.ranks} is none of 2 to {_MAX_RANKS}")
    if not 0 < namespace.timeout <= _MAX_TIMEOUT_S:
        raise ConfigError(f"--timeout {namespace.timeout:g} must be above 0 and at most {_MAX_TIMEOUT_S:g} seconds")
    layers = [*_try_layers(namespace.ranks, namespace.timeout, namespace.plugins), _shared_memory()]
    failed = next((layer for layer in layers if layer.state == "failed"), None)
    if namespace.json:
        report = {
            "ok": failed is None,
            "failed": failed.name if failed else None,
            "layers": [dataclasses.asdict(layer) for layer in layers],
        }
        print(json.dumps(report, indent=2))
        return int(failed is not None)
    for layer in layers:
        print(f"{layer.state:>9}  {_TITLES[layer.name]}{': ' if layer.told else ''}{layer.told}")
        if layer.remedy and layer.state in ("failed", "warning"):
            print(f"{'':>9}  → {layer.remedy}")
    print(f"ranks can't work here: {_TITLES[failed.name]} fails" if failed else "ranks can work on this machine")
    return int(failed is not None)


def _shared_memory() -> Layer:
    """Who keeps shared memory in files, of what is installed."""
    users = [name for name, module in (("NCCL", "nvidia"), ("Ray", "ray")) if importlib.util.find_spec(module)]
    problem = shared_memory_problem(" and ".join(users) or "NCCL", _NCCL_BYTES)
    if problem is None:
        return Layer("shm", "ok", "/dev/shm is large enough for NCCL and Ray; corefw's own has no files")
    told, _, remedy = problem.partition("; ")
    return Layer("shm", "warning" if users else "not here", told if users else "no NCCL and no Ray here", remedy)


def _try_layers(num_ranks: int, timeout_s: float, allow: str | None) -> list[Layer]:
    with ExitStack() as stack:
        meeting, device_meeting = stack.enter_context(LocalMeeting()), stack.enter_context(LocalMeeting())
        network_address = f"tcp://{socket.gethostname()}:{_free_port()}"
        platform = _platform(allow)
        queue = QueueFds.create(num_ranks)
        stack.callback(queue.close)
        writer = stack.enter_context(closing(BroadcastWriter(queue)))
        tasks = [
            CheckTask(
                rank=rank,
                size=num_ranks,
                local_address=meeting.address,
                device_address=device_meeting.address,
                network_address=network_address,
                queue=queue.of_reader(rank).to_text(),
                timeout_s=timeout_s,
                platform=platform,
                allow=allow,
            )
            for rank in range(num_ranks)
        ]
        ranks = [stack.enter_context(closing(_Rank(task, queue))) for task in tasks]
        message = os.urandom(_MESSAGE_BYTES)
        writer.send([hashlib.sha256(message).hexdigest().encode(), message])
        deadline = time.monotonic() + _START_S + timeout_s * len(_TITLES)
        for rank in ranks:
            rank.wait(deadline)
        return [_joined(name, ranks) for name in _TITLES if name != "shm"]


def _joined(name: str, ranks: Sequence[_Rank]) -> Layer:
    """What all ranks say of a layer; the first that failed speaks for all."""
    news = [rank.news.get(name) for rank in ranks]
    failed = next((each for each in news if each is not None and each.state == "failed"), None)
    hanging = next((rank for rank in ranks if (found := rank.news.get(name)) and found.state == "begins"), None)
    if failed is None and hanging is not None:
        failed = LayerNews(layer=name, state="failed", told=hanging.end())
    if failed is not None:
        state = "warning" if name in _OPTIONAL else "failed"
        return Layer(name, state, failed.told, _REMEDIES[name], round(failed.seconds, 3))
    told = [each for each in news if each is not None]
    if not told:
        return Layer(name, "not tried")
    return Layer(name, told[0].state, told[0].told, seconds=round(max(each.seconds for each in told), 3))


class _Rank:
    """A child process, and the last that it told of each layer."""

    def __init__(self, task: CheckTask, queue: QueueFds) -> None:
        self.news: dict[str, LayerNews] = {}
        self._number = task.rank
        text = msgspec.json.encode(task).decode()
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "corefw.runtime.distributed.comm_check", text],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=queue.of_reader(task.rank).all(),
            env=env.child_environment(),
            text=True,
        )
        self._errors: list[str] = []
        self._threads = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)]
        for thread in self._threads:
            thread.start()

    def wait(self, deadline: float) -> None:
        """Until it has ended; it is killed when its time is over."""
        try:
            self._child.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._child.kill()
        for thread in self._threads:
            thread.join(5)

    def end(self) -> str:
        """How it ended in the middle of a layer."""
        code = self._child.wait()
        last = next((line for line in reversed(self._errors) if line.strip()), "").strip()[:300]
        how = "hung and was killed" if code == -9 else f"ended with status {code}"
        return f"rank {self._number} {how}{': ' if last else ''}{last}"

    def close(self) -> None:
        """Let nothing run on."""
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()
        for stream in (self._child.stdout, self._child.stderr):
            if stream is not None:
                stream.close()

    def _read(self) -> None:
        for line in _lines(self._child.stdout):
            try:
                told = msgspec.json.decode(line, type=LayerNews)
            except msgspec.DecodeError:
                self._errors.append(line)  # something that a library prints
            else:
                self.news[told.layer] = told

    def _read_errors(self) -> None:
        self._errors.extend(_lines(self._child.stderr))


def _lines(stream: object) -> Iterator[str]:
    assert hasattr(stream, "readline")
    return iter(stream.readline, "")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def _platform(allow: str | None) -> str:
    """The one that a server would take: an available external one before a built-in one."""
    loaded = sorted(
        PluginManager.discover(allow, "warn").load_all("platform_plugins"), key=lambda plugin: plugin.builtin
    )
    return next((plugin.name for plugin in loaded if plugin.create().unavailable_reason() is None), "cpu")
