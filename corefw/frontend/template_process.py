"""The process that renders chat templates, as its parent sees it: kept warm, started again when it was ended."""

from __future__ import annotations

import contextlib
import pickle
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corefw.engine.signal_mask import blocked_signals
from corefw.errors import EngineError

__all__ = ["TemplateAnswer", "TemplateProcess"]

# The limit is on computing, not on waiting; this one is for a machine so busy that the first never comes.
_MAX_WAIT_S = 60.0
_REAP_S = 5.0
_MAX_REQUEST_BYTES = 64 * 2**20
_TOO_LONG = -signal.SIGPROF  # the status of a child that the kernel ended for its computing
# The first byte of a request and of an answer, see template_worker.
_BRIEF, _PATIENT = b"B", b"P"
_TEXT, _REFUSAL, _SLOW = b"T", b"R", b"S"


@dataclass(frozen=True, slots=True)
class TemplateAnswer:
    """What rendering gave.

    Attributes:
        text: the prompt.
        refused: the template's own words, where it called ``raise_exception``.
        problem: why it failed.
        is_slow: it was given up, since it was to be brief.
    """

    text: str = ""
    refused: str | None = None
    problem: str | None = None
    is_slow: bool = False


class TemplateProcess:
    """One child with compiled templates. Any thread may ask; one is answered at a time.

    The child is started at construction and never outlives this object or this process.

    Args:
        sources: template text by name.

    Raises:
        EngineError: the child can't be started.
    """

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = dict(sources)
        self._lock = threading.Lock()
        self._child, self._link = self._start()
        self._compiled: TemplateAnswer | None = None

    def problem(self) -> str | None:
        """Why the templates can't be used, None when they can; waits for the child's start."""
        with self._lock:
            return self._await_start().problem

    def render(self, name: str, variables: Mapping[str, Any], *, briefly: bool = False) -> TemplateAnswer:
        """Render a template. A child that ended is replaced, at once where rendering took too long.

        Args:
            name: of the template.
            variables: plain data.
            briefly: give up soon, with an answer that ``is_slow``.

        Raises:
            EngineError: the child can't be started, or doesn't answer.
        """
        try:
            request = pickle.dumps(("render", (name, variables)))
        except Exception as error:  # of many kinds
            return TemplateAnswer(problem=f"its variables must be plain data ({str(error)[:200]})")
        if len(request) > _MAX_REQUEST_BYTES:
            return TemplateAnswer(problem=f"its variables take {len(request)} bytes; {_MAX_REQUEST_BYTES} is the limit")
        letter = _BRIEF if briefly else _PATIENT
        with self._lock:
            answer = self._attempt(letter, request)
            if self._has_crashed():  # by these variables, or by somebody: the second time it was them
                answer = self._attempt(letter, request)
            if self._child.returncode != _TOO_LONG:
                return answer
            with contextlib.suppress(EngineError):  # the next request says so
                self._replace()
        return TemplateAnswer(is_slow=True) if briefly else answer

    def _attempt(self, letter: bytes, request: bytes) -> TemplateAnswer:
        if self._child.poll() is not None:
            self._replace()
        started = self._await_start()
        return started if started.problem else self._ask(letter, request)

    def _has_crashed(self) -> bool:
        return self._child.returncode not in (None, _TOO_LONG)

    def _replace(self) -> None:
        self._close()
        self._child, self._link = self._start()
        self._compiled = None

    def _await_start(self) -> TemplateAnswer:
        if self._compiled is None:
            self._compiled = self._receive()
            if self._compiled.problem and self._child.poll() is not None:
                self._compiled = TemplateAnswer(problem=f"the chat template isn't usable: {self._compiled.problem}")
        return self._compiled

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """A new child, with the templates on their way to it."""
        ours, theirs = socket.socketpair()
        try:
            with theirs, blocked_signals():
                child = subprocess.Popen(
                    [sys.executable, "-P", "-m", "corefw.frontend.template_worker"], stdin=theirs.fileno(), stdout=2
                )
        except OSError as error:
            ours.close()
            raise EngineError(f"the process for chat templates can't be started: {error.strerror}") from error
        self._close = weakref.finalize(self, _end, child, ours)
        ours.settimeout(_MAX_WAIT_S)
        with contextlib.suppress(OSError):  # it died: seen when its answer is read
            _send(ours, _PATIENT, pickle.dumps(("compile", (self._sources,))))
        return child, ours

    def _ask(self, letter: bytes, request: bytes) -> TemplateAnswer:
        with contextlib.suppress(OSError):
            _send(self._link, letter, request)
        return self._receive()

    def _receive(self) -> TemplateAnswer:
        try:
            head = _receive_exactly(self._link, 9)
            text = _receive_exactly(self._link, int.from_bytes(head[1:]))
        except TimeoutError:
            self._close()
            raise EngineError(f"the process for chat templates didn't answer in {_MAX_WAIT_S:g} s") from None
        except (OSError, EOFError):
            self._close()
            return TemplateAnswer(problem=_ending(self._child.returncode))
        said = text.decode("utf-8", "surrogatepass")
        if head[:1] == _TEXT:
            return TemplateAnswer(said)
        if head[:1] == _SLOW:
            return TemplateAnswer(is_slow=True)
        return TemplateAnswer(refused=said) if head[:1] == _REFUSAL else TemplateAnswer(problem=said)


def _ending(status: int) -> str:
    if status == _TOO_LONG:
        return "it takes too long, and was stopped"
    return f"its process ended with status {status}"


def _end(child: subprocess.Popen[bytes], link: socket.socket) -> None:
    link.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(0)
    child.kill()  # without effect when it has ended by itself
    child.wait(_REAP_S)


def _send(link: socket.socket, letter: bytes, request: bytes) -> None:
    link.sendall(letter + len(request).to_bytes(8) + request)


def _receive_exactly(link: socket.socket, num_bytes: int) -> bytes:
    parts = []
    while num_bytes:
        part = link.recv(min(num_bytes, 2**20))
        if not part:
            raise EOFError
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)
