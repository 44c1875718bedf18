"""How long a start takes until the first token, and what is held in memory then. Each engine in a new process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from .engines import Engine
from .process import ChildProcess, EngineProcess
from .prompts import Prompts
from .rounds import MACHINE, Measurements, take_turns
from .serving import Server, start_server
from .weights import Weights

__all__ = ["Started", "start_engine", "start_rounds"]

_NUM_PROMPT_TOKENS = 16


class Started:
    """Engines that run, and servers; a context manager that ends them.

    Attributes:
        engines: by name.
        servers: by name.
        about: what each engine's driver told when it had loaded.
    """

    def __init__(self, folder: Path, weights: Weights, prompts: Prompts, measured: Measurements) -> None:
        self.engines: dict[str, EngineProcess] = {}
        self.servers: dict[str, Server] = {}
        self.about: dict[str, dict[str, object]] = {}
        self._processes: list[ChildProcess] = []
        self._folder = folder
        self._weights = weights
        self._prompts = prompts
        self._measured = measured

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self, engine: Engine) -> None:
        """Start an engine and leave it asleep; one that can't is left out."""
        with self._measured.noting(engine.name):
            process, values, about = start_engine(engine, self._weights, self._prompts, self._folder)
            self._processes.append(process)
            self.engines[engine.name] = process
            self.about[engine.name] = about
            if not engine.quick_start:
                self._measured.add(engine.name, values)
            process.signal(signal.SIGSTOP)

    def start_server(self, engine: Engine) -> None:
        """Start an engine's server and leave it asleep; one that can't is left out."""
        with self._measured.noting(engine.name):
            server = start_server(engine, self._weights, self._folder / f"{engine.name}-server.log")
            self._processes.append(server.process)
            self._measured.add(
                engine.name, {"start server_s": server.start_s, "memory server_bytes": server.process.memory()}
            )
            self.servers[engine.name] = server
            server.process.signal(signal.SIGSTOP)

    def end(self) -> None:
        """All that were started, those that dropped out as well."""
        for process in self._processes:
            process.close()
        self._processes.clear()
        self.engines.clear()
        self.servers.clear()


def start_engine(
    engine: Engine, weights: Weights, prompts: Prompts, folder: Path, environment: Mapping[str, str] | None = None
) -> tuple[EngineProcess, dict[str, float], dict[str, object]]:
    """A new process up to its first token.

    Returns:
        The process, seconds and bytes by metric, what the driver told.

    Raises:
        EngineError: it failed, or took too long.
    """
    variables = {**engine.environment, **(environment or {})}
    process = EngineProcess(engine.python, engine.driver, variables, folder / f"{engine.name}.log")
    try:
        about = process.load(weights.paths[engine.form], engine.options, engine.start_timeout_s)
        made = process.generate([prompts.make(_NUM_PROMPT_TOKENS, "Start")], 1)
        first_s = made.start_s + made.times_s[0][0] - process.started_s
        return process, {"start library_s": first_s, "memory library_bytes": process.memory()}, about
    except BaseException:
        process.close()
        raise


def start_rounds(
    engines: list[Engine], weights: Weights, prompts: Prompts, folder: Path, num_rounds: int, measured: Measurements
) -> None:
    """Start those that start quickly, in turns; and time ``import torch`` between them.

    Files are in the machine's page cache. What an engine keeps on disk of an earlier start is there but in the first
    round of corefw, whose own cache is empty then.
    """
    with tempfile.TemporaryDirectory(prefix="corefw-cache-") as cache:
        runs: dict[str, Callable[[], Mapping[str, float]]] = {MACHINE: _import_torch}
        own = {"COREFW_CACHE_DIR": cache}
        for engine in engines:
            if engine.quick_start:
                runs[engine.name] = _start(engine, weights, prompts, folder, own if engine.own else {})

        def work(name: str, run: Callable[[], Mapping[str, float]], round_: int) -> Mapping[str, float]:
            values = run()
            if round_ < 0 and any(engine.name == name and engine.own for engine in engines):
                cold = {metric.replace("_s", "_cold_s"): value for metric, value in values.items() if "start" in metric}
                measured.add(name, cold)
            return values

        take_turns("start", runs, num_rounds, measured, work)


def _start(
    engine: Engine, weights: Weights, prompts: Prompts, folder: Path, environment: Mapping[str, str]
) -> Callable[[], Mapping[str, float]]:
    def run() -> Mapping[str, float]:
        process, values, _ = start_engine(engine, weights, prompts, folder, environment)
        process.close()
        if engine.own and engine.server is not None:
            server = start_server(engine, weights, folder / f"{engine.name}-server.log", environment)
            values = {
                **values, "start server_s": server.start_s, "memory server_bytes": server.process.memory()
            }  # fmt: skip
            server.process.close()
        return values

    return run


def _import_torch() -> Mapping[str, float]:
    code = "import json, time; s = time.perf_counter(); import torch; print(json.dumps(time.perf_counter() - s))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {"start import_torch_s": json.loads(done.stdout)}
