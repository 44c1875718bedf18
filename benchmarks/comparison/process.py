"""The comparison's side of an engine in a process of its own: calls, memory, pauses, end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

__all__ = ["ChildProcess", "EngineError", "EngineProcess", "Generated"]

_SOURCES = Path(__file__).parent.parent


class EngineError(Exception):
    """An engine died, failed or took too long."""


@dataclass(frozen=True, slots=True)
class Generated:
    """What an engine made of prompts.

    Attributes:
        tokens: of each.
        times_s: when each came, after the call's start in the engine's process.
        start_s: that start, of the machine's monotonic clock.
    """

    tokens: list[list[int]]
    times_s: list[list[float]]
    start_s: float

    @property
    def elapsed_s(self) -> float:
        """Until the last token of all."""
        return max(times[-1] for times in self.times_s)

    @property
    def ttft_s(self) -> float:
        """Until the first prompt's first token."""
        return self.times_s[0][0]

    @property
    def decode_rate(self) -> float:
        """Tokens a second of the first prompt, after its first."""
        times = self.times_s[0]
        return (len(times) - 1) / (times[-1] - times[0])

    @property
    def gaps_s(self) -> list[float]:
        """Between tokens of a prompt, all prompts' together."""
        return [later - sooner for times in self.times_s for sooner, later in pairwise(times)]


class ChildProcess:
    """A process, with whatever it starts, in a group of its own. A context manager that ends them all.

    Args:
        command: what is run.
        environment: variables beside this process's own.
        log: gets what it prints.
        piped: its standard input and output are for this process instead.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, *, piped: bool = False
    ) -> None:
        self.log = log
        self.started_s = time.monotonic()
        with log.open("ab") as stream:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else stream,
                stderr=stream,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        """To all processes of the group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Outside of such blocks a paused process takes no part of a core."""
        self.signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.signal(signal.SIGSTOP)

    def memory(self) -> int:
        """Bytes that all its processes hold, pages shared by several counted in parts."""
        return sum(_pss(pid) for pid in _group(self._process.pid))

    def close(self) -> None:
        """End it: asked first, killed where it doesn't go."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self.signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def last_words(self) -> str:
        """The end of its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-2000:]


class EngineProcess(ChildProcess):
    """An engine behind a driver.

    Args:
        python: interpreter of the engine's environment.
        module: of the driver.
        environment: variables beside this process's own.
        log: gets what it prints.
    """

    def __init__(self, python: Path, module: str, environment: Mapping[str, str], log: Path) -> None:
        paths = {"PYTHONPATH": str(_SOURCES), "PYTHONUNBUFFERED": "1"}
        super().__init__([str(python), "-m", f"comparison.{module}"], {**environment, **paths}, log, piped=True)

    def load(self, weights: Path, options: Mapping[str, Any], timeout_s: float = 600) -> dict[str, Any]:
        """Load a model.

        Raises:
            EngineError: it can't.
        """
        return self._call({"call": "load", "weights": str(weights), "options": options}, timeout_s)

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int, timeout_s: float = 300) -> Generated:
        """Continue prompts, all at once.

        Raises:
            EngineError: it can't, or gave another number of tokens.
        """
        answer = self._call({"call": "generate", "prompts": prompts, "num_tokens": num_tokens}, timeout_s)
        counts = {len(tokens) for tokens in answer["tokens"]}
        if counts != {num_tokens}:
            raise EngineError(f"{sorted(counts)} tokens came, not {num_tokens}")
        return Generated(**answer)

    def score(self, ids: Sequence[int], timeout_s: float = 300) -> float | None:
        """Mean negative log-probability of a text's tokens; None where the engine doesn't tell."""
        answer = self._exchange({"call": "score", "ids": ids}, timeout_s)
        if "error" in answer and answer["error"].startswith("NotImplementedError"):
            return None
        return float(_checked(answer)["mean_nll"])

    def _call(self, call: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        return _checked(self._exchange(call, timeout_s))

    def _exchange(self, call: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(call).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise EngineError(f"the engine died: {self.last_words()}") from None
        if not select.select([process.stdout], [], [], timeout_s)[0]:
            raise EngineError(f"no answer within {timeout_s:.0f} s: {self.last_words()}")
        line = process.stdout.readline()
        if not line:
            raise EngineError(f"the engine died: {self.last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        raise EngineError(answer["error"])
    return answer


def _group(leader: int) -> list[int]:
    members = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(ValueError, ProcessLookupError, PermissionError):
            pid = int(entry.name)
            if os.getsid(pid) == leader:
                members.append(pid)
    return members


def _pss(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
