"""Loads plugins in child processes and says what became of each. A crash or a hang costs the child alone."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from corefw.plugin_system.discovery import FoundPlugin, find_plugins
from corefw.plugin_system.groups import Process
from corefw.plugin_system.manager import PluginManager
from corefw.plugin_system.verdicts import State, Verdict

__all__ = ["MISSING_IN_CHILD", "PROBE_TIMEOUT_S", "Fates", "probe"]

PROBE_TIMEOUT_S = 60.0
_ENDING_S = 10.0  # an interpreter needs a while to end, on a busy machine
MISSING_IN_CHILD = "the child doesn't find it"

Key = tuple[str, str, str, str]
Fates = dict[FoundPlugin, tuple[State, str]]
"""State and reason by plugin."""


def probe(plugins: Sequence[FoundPlugin], timeout_s: float = PROBE_TIMEOUT_S) -> Fates:
    """Load each plugin, one after another, in a child.

    One that ends the child, or takes longer than ``timeout_s``, is ``failed`` with that reason; a further child goes on
    with the next. What plugins print is dropped.
    """
    fates: Fates = {}
    left = list(plugins)
    while left:
        for key, state, reason in _child(left, timeout_s):
            plugin = next(p for p in left if _key(p) == key)
            fates[plugin] = (State(state), reason)
        left = [plugin for plugin in left if plugin not in fates]
    return fates


def _child(plugins: Sequence[FoundPlugin], timeout_s: float) -> Iterator[tuple[Key, str, str]]:
    """What one child tells: all of them, or up to the first that ended it."""
    told, tell = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "corefw.plugin_system.probe", str(tell)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[tell],
        start_new_session=True,
    )
    os.close(tell)
    try:
        with contextlib.suppress(BrokenPipeError), child.stdin as stdin:  # type: ignore[union-attr]
            stdin.write(json.dumps([_key(plugin) for plugin in plugins]).encode())
        answers = _lines(told, timeout_s)
        for plugin in plugins:
            try:
                answer = next(answers, None)
            except TimeoutError:
                yield _key(plugin), State.FAILED, f"it wasn't loaded within {timeout_s:g} s; the process was killed"
                return
            if answer is None:
                yield _key(plugin), State.FAILED, _end(child)
                return
            state, reason = json.loads(answer)
            yield _key(plugin), state, reason
    finally:
        os.close(told)
        _kill(child)


def _lines(told: int, timeout_s: float) -> Iterator[str]:
    """Lines as they come, until the other side ends.

    Raises:
        TimeoutError: it stays silent for too long.
    """
    buffer = b""
    deadline = time.monotonic() + timeout_s
    while True:
        if not select.select([told], [], [], max(deadline - time.monotonic(), 0))[0]:
            raise TimeoutError
        read = os.read(told, 65536)
        if not read:
            return
        *lines, buffer = (buffer + read).split(b"\n")
        for line in lines:
            yield line.decode()
            deadline = time.monotonic() + timeout_s


def _end(child: subprocess.Popen[bytes]) -> str:
    """How a child ended that tells no more."""
    try:
        status = child.wait(_ENDING_S)
    except subprocess.TimeoutExpired:
        return "it closed the files of the process that loaded it; the process was killed"
    ending = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    return f"it ended the process that loaded it ({ending})"


def _kill(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _key(plugin: FoundPlugin) -> Key:
    return plugin.group, plugin.name, plugin.distribution, plugin.value


def _main(tell: int) -> None:
    wanted = [tuple(key) for key in json.load(sys.stdin)]
    found = {_key(plugin): plugin for plugin in find_plugins()}
    verdicts = [Verdict(plugin=plugin, state=State.FOUND, reason="") for plugin in found.values()]
    manager = PluginManager(verdicts, source="", policy="normal")
    with os.fdopen(tell, "w", encoding="utf-8") as out:
        for key in wanted:
            plugin = found.get(key)
            fate = (State.FAILED, MISSING_IN_CHILD) if plugin is None else manager.attempt(plugin, Process.CLI)
            print(json.dumps(fate), file=out, flush=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
