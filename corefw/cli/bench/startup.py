"""``corefw bench startup``: from the command to the first answer, in processes of their own."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from corefw.cli.bench.offline import show
from corefw.cli.client.http import HttpTransport
from corefw.cli.client.transport import TransportError, post_json
from corefw.errors import ConfigError, EngineStartError

__all__ = ["add_arguments", "run"]

_READY = "corefw is ready on "
_STAGES = " s (beginning "  # of lines with a ``StageTimes``


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``corefw bench startup``."""
    parser.add_argument("--model", help="default: the demo model")
    parser.add_argument("--num-iters", type=int, default=3, help="starts (default: 3)")
    parser.add_argument("--output-json", metavar="FILE", help="write the figures as JSON")
    parser.add_argument("serve_flags", nargs="*", metavar="-- FLAGS", help="flags of corefw serve, after --")


def run(options: argparse.Namespace) -> int:
    """Measure and print. The first start may fill caches; it is shown apart."""
    if options.num_iters < 1:
        raise ConfigError(f"--num-iters must be at least 1, got {options.num_iters}")
    model = [] if options.model is None else [options.model]
    command = [sys.executable, "-P", "-m", "corefw.cli.main", "serve", *model, "--port", "0", *options.serve_flags]
    starts, torch_s = [], []
    for _ in range(options.num_iters):
        starts.append(_start(command))
        torch_s.append(_import_torch_s())
    ready_s = [start.ready_s for start in starts]
    figures: dict[str, object] = {
        "first": ready_s[0],
        "median": statistics.median(ready_s),
        "fastest": min(ready_s),
        "starts": [round(value, 3) for value in ready_s],
        "import torch": statistics.median(torch_s),
    }
    tokens_s = [start.token_s for start in starts if start.token_s is not None]
    if tokens_s:
        figures["first token"] = statistics.median(tokens_s)
    if starts[-1].memory_bytes:
        figures["memory (MiB)"] = statistics.median(start.memory_bytes for start in starts) / 2**20
    show(options, figures)
    print(*starts[-1].stages, sep="\n")
    return 0


@dataclass(frozen=True, slots=True)
class _Started:
    """One start.

    Attributes:
        ready_s: until the server said that it is ready.
        token_s: until it had answered with one token; None where it refused.
        memory_bytes: of all its processes then, shared pages in parts; 0 where the kernel doesn't tell.
        stages: lines of its log that say what took how long.
    """

    ready_s: float
    token_s: float | None
    memory_bytes: int
    stages: list[str]


def _start(command: list[str]) -> _Started:
    """Start a server, ask it for a token, and stop it.

    Raises:
        EngineStartError: it ended without becoming ready.
    """
    begin_s = time.perf_counter()
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True) as server,
    ):
        assert server.stdout is not None
        try:
            url = _ready_url(server.stdout)
            if url is None:
                last = _read(log).strip().splitlines()[-1:]
                raise EngineStartError(f"the server didn't start: {''.join(last)[:500]}")
            ready_s = time.perf_counter() - begin_s
            token_s = time.perf_counter() - begin_s if asyncio.run(_answers(url)) else None
            memory = sum(map(_memory_bytes, _family(server.pid)))
            return _Started(ready_s, token_s, memory, [line for line in _read(log).splitlines() if _STAGES in line])
        finally:
            server.terminate()
            server.communicate()


def _ready_url(output: IO[str]) -> str | None:
    return next((line.removeprefix(_READY).strip() for line in output if line.startswith(_READY)), None)


def _read(log: IO[str]) -> str:
    log.seek(0)
    return log.read()


async def _answers(url: str) -> bool:
    transport = HttpTransport(url)
    try:
        asked = {"prompt": "Hello", "max_tokens": 1, "temperature": 0}
        status, _ = await post_json(transport, "/v1/completions", asked)
        return status == 200
    except TransportError:  # it speaks over TLS with a certificate of its own
        return False
    finally:
        await transport.close()


def _family(pid: int) -> Iterator[int]:
    """A process and its descendants."""
    yield pid
    with contextlib.suppress(OSError):  # it has just gone
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                yield from _family(int(child))


def _memory_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _import_torch_s() -> float:
    begin_s = time.perf_counter()
    subprocess.run([sys.executable, "-P", "-c", "import torch"], check=True)
    return time.perf_counter() - begin_s
