"""A real server on a real socket over an engine that plays a script: what the server's tests talk to."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import openai

from corefw.config.engine_config import (
    CacheConfig,
    CompilationConfig,
    EngineConfig,
    FrontendConfig,
    LoadConfig,
    ModelConfig,
    ParallelConfig,
    PluginConfig,
    SchedulerConfig,
    ServerConfig,
)
from corefw.config.model_info import ModelFiles, ModelInfo
from corefw.frontend.io_processing import IOProcessing
from corefw.frontend.text_engine import TextEngine
from corefw.interfaces.endpoint import Endpoint
from corefw.interfaces.io_processor import IOProcessor, IOSetup
from corefw.server.app import create_app
from corefw.server.http_protocol import Deadlines
from corefw.server.listener import listen_on
from corefw.server.observation import make_tracing
from corefw.server.run import HttpServer
from corefw.server.state import ServerState
from corefw.testing.byte_text import BYTE_EOS_ID, BYTE_VOCAB_SIZE, ByteRenderer
from corefw.testing.in_process_server import builtin_endpoints
from corefw.testing.scripted_engine import ScriptedEngine

EOS_ID = BYTE_EOS_ID
VOCAB_SIZE = BYTE_VOCAB_SIZE
MODEL = "demo"


def engine_config(generation_config: dict[str, Any] | None = None) -> EngineConfig:
    info = ModelInfo(
        files=ModelFiles(reference=MODEL, source="test", root="/nowhere", weights=()),
        loader="test",
        architecture="TestForCausalLM",
        hf_config={"num_hidden_layers": 1},
        checkpoint_dtype="float32",
        max_position=2048,
        vocab_size=VOCAB_SIZE,
        eos_ids=(EOS_ID,),
        generation_config=generation_config or {},
    )
    return EngineConfig(
        model=ModelConfig(model="test:demo", served_model_name=(MODEL,)),
        load=LoadConfig(),
        cache=CacheConfig(),
        scheduler=SchedulerConfig(),
        parallel=ParallelConfig(),
        compilation=CompilationConfig(),
        plugins=PluginConfig(),
        frontend=FrontendConfig(),
        model_info=info,
        dtype="float32",
        platform="cpu",
    )


def scripted(text: str | Callable[[Any], Sequence[int]] = "Hello, world!", **settings: Any) -> ScriptedEngine:
    """An engine that answers every request with ``text`` and an end token."""
    script = [*text.encode(), EOS_ID] if isinstance(text, str) else text
    return ScriptedEngine(script, config=settings.pop("config", None) or engine_config(), **settings)


def make_state(engine: ScriptedEngine, server_config: ServerConfig | None = None, plugins: Any = None) -> ServerState:
    renderer: Any = ByteRenderer()
    served: Any = engine
    server_config = server_config or ServerConfig(port=0)
    return ServerState.build(
        engine=served,
        text=TextEngine(served, renderer),
        renderer=renderer,
        plugins=plugins,
        config=engine.config,
        server_config=server_config,
        started_s=time.time(),
        tracing=make_tracing(server_config),
    )


@dataclass
class Running:
    """A server in a thread."""

    url: str
    port: int
    engine: ScriptedEngine
    state: ServerState
    server: HttpServer
    loop: asyncio.AbstractEventLoop

    def post(self, path: str, body: Any, **settings: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/{path}", json=body, timeout=30, **settings)

    def get(self, path: str, **settings: Any) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=30, **settings)

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=30)

    def in_loop(self, function: Callable[[], Any]) -> None:
        """Call ``function`` where the engine lives."""
        self.loop.call_soon_threadsafe(function)

    def metric(self, line_start: str) -> float:
        for line in self.get("/metrics").text.splitlines():
            if line.startswith(line_start):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no metric {line_start}")


@contextmanager
def serving(
    engine: ScriptedEngine,
    *,
    endpoints: Sequence[Endpoint] = (),
    plugins: Any = None,
    deadlines: Deadlines | None = None,
    processor: type[IOProcessor] | None = None,
    **settings: Any,
) -> Iterator[Running]:
    """Run a server for the length of a block; ``settings`` are fields of ``ServerConfig``."""
    config = ServerConfig(**{"port": 0, **settings})
    state = make_state(engine, config, plugins)
    if processor is not None:
        made = processor(IOSetup(config=engine.config, renderer=state.renderer))
        state = replace(state, processing=IOProcessing(made, "test/processor", engine.config, state.renderer))
    listener = listen_on(config)
    server = HttpServer(create_app(state, [*builtin_endpoints(), *endpoints]), config, listener, deadlines)
    loop = asyncio.new_event_loop()
    port = 0 if config.uds else listener.socket.getsockname()[1]
    thread = threading.Thread(target=loop.run_until_complete, args=(server.serve([listener.socket]),))
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield Running(listener.url, port, engine, state, server, loop)
    finally:
        server.should_exit = True
        thread.join(20)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        listener.close()


def wait_until(condition: Callable[[], bool], limit_s: float = 5.0) -> None:
    """Poll; an assertion error when it takes too long."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def events(response: httpx.Response) -> list[str]:
    """The data of every server-sent event."""
    blocks = [block for block in response.text.split("\n\n") if block]
    assert all(block.startswith("data: ") for block in blocks)
    return [block.removeprefix("data: ") for block in blocks]
