"""``corefw bench startup``: from the command to the first answer, in processes of their own."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from typing import IO

from corefw.cli.bench.offline import show
from corefw.errors import ConfigError, EngineStartError

__all__ = ["add_arguments", "run"]

_READY = "corefw is ready on "


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
    starts_s = [_start(command) for _ in range(options.num_iters)]
    show(
        options,
        {
            "first": starts_s[0],
            "median": statistics.median(starts_s),
            "fastest": min(starts_s),
            "starts": [round(value, 3) for value in starts_s],
        },
    )
    return 0


def _start(command: list[str]) -> float:
    """Seconds until the server says that it is ready; it is stopped then.

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
            if not _becomes_ready(server.stdout):
                log.seek(0)
                last = log.read().strip().splitlines()[-1:]
                raise EngineStartError(f"the server didn't start: {''.join(last)[:500]}")
            return time.perf_counter() - begin_s
        finally:
            server.terminate()
            server.communicate()


def _becomes_ready(output: IO[str]) -> bool:
    return any(line.startswith(_READY) for line in output)
