"""HTTP servers under clients that stream: each engine's own server, all started before, taking turns."""

from __future__ import annotations

import asyncio
import socket
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

from corefw.cli.bench.load import Load, Measured, run_load, send_one
from corefw.cli.bench.prompts import BenchPrompt
from corefw.cli.client.http import HttpTransport
from corefw.cli.client.transport import TransportError, first_model

from .engines import Engine
from .process import ChildProcess, EngineError
from .prompts import Prompts
from .rounds import Measurements, take_turns
from .scenarios import Sizes
from .weights import Weights

__all__ = ["Server", "serving", "start_server"]

_POLL_S = 0.02
_OK = 200


class Server:
    """A server that answers.

    Attributes:
        process: its processes.
        url: where it listens.
        start_s: from its start to the first token that a client saw.
    """

    def __init__(self, process: ChildProcess, url: str, start_s: float) -> None:
        self.process = process
        self.url = url
        self.start_s = start_s


def start_server(engine: Engine, weights: Weights, log: Path, environment: Mapping[str, str] | None = None) -> Server:
    """Start an engine's server and wait for a first token.

    Raises:
        EngineError: it ended, or took too long.
    """
    assert engine.server is not None
    port = _free_port()
    values = {"weights": str(weights.paths[engine.form]), "port": str(port)}
    command = [part.format(**values) for part in engine.server]
    process = ChildProcess(command, {**engine.environment, **(environment or {})}, log)
    url = f"http://127.0.0.1:{port}"
    try:
        asyncio.run(_first_token(process, url, time.monotonic() + engine.start_timeout_s))
    except BaseException:
        process.close()
        raise
    return Server(process, url, time.monotonic() - process.started_s)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _first_token(process: ChildProcess, url: str, deadline_s: float) -> None:
    while time.monotonic() < deadline_s:
        if not process.alive:
            raise EngineError(f"the server ended: {process.last_words()}")
        transport = HttpTransport(url)
        try:
            answer = await transport.send("GET", "/health")
            await answer.read()  # some say nothing
            if answer.status != _OK:
                raise TransportError(f"/health answers {answer.status}")
            load = await _load(transport)
            measured = await send_one(transport, load.path, load.body(BenchPrompt([5, 6, 7, 8], 1)), 0.0)
            if not measured.error:
                return
        except TransportError:
            pass
        finally:
            await transport.close()
        await asyncio.sleep(_POLL_S)
    raise EngineError(f"the server isn't ready in time: {process.last_words()}")


async def _load(transport: HttpTransport) -> Load:
    fields = {"model": await first_model(transport), "temperature": 0, "ignore_eos": True}
    return Load(path="/v1/completions", chat=False, fields=fields)


def serving(servers: dict[str, Server], prompts: Prompts, sizes: Sizes, measured: Measurements) -> None:
    """Clients that each send their next request when the last has ended."""
    num_clients, num_requests, length, num_tokens = sizes.server

    def work(name: str, server: Server, round_: int) -> Mapping[str, float]:
        asked = [
            BenchPrompt(prompts.make(length, f"Client {round_} {place}"), num_tokens) for place in range(num_requests)
        ]
        cpu_s = time.process_time()
        with server.process.awake():
            results, elapsed_s = asyncio.run(_drive(server.url, asked, num_clients))
        cpu_s = time.process_time() - cpu_s
        for result in results:
            if result.error:
                raise EngineError(result.error)
        ttft_ms = sorted(result.ttft_s * 1000 for result in results)
        itl_ms = [gap * 1000 for result in results for gap in result.itl_s]
        if round_ == sizes.rounds - 1:
            measured.samples.setdefault("server ttft_ms", {})[name] = ttft_ms
            measured.samples.setdefault("server itl_ms", {})[name] = itl_ms
        return {
            "server tokens_per_s": sum(result.num_output_tokens for result in results) / elapsed_s,
            "server ttft_ms": statistics.median(ttft_ms),
            "server ttft_p99_ms": ttft_ms[min(len(ttft_ms) - 1, int(len(ttft_ms) * 0.99))],
            "server itl_ms": statistics.median(itl_ms) if itl_ms else 0.0,
            "server load_generator_cores": cpu_s / elapsed_s,
        }

    take_turns("server", servers, sizes.rounds, measured, work)


async def _drive(url: str, asked: list[BenchPrompt], num_clients: int) -> tuple[list[Measured], float]:
    transport = HttpTransport(url)
    try:
        load = await _load(transport)
        return await run_load(transport, load, asked, [0.0] * len(asked), num_clients, lambda: None)
    finally:
        await transport.close()
