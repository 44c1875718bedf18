"""An API server that is there but does nothing: the others tell, it is replaced, and they go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from corefw.config.args import UserArgs
from corefw.config.engine_config import ServerConfig
from corefw.engine.hub import EngineHub
from corefw.engine.resolver import resolve_config, with_tokenizer_size
from corefw.messages.outputs import EngineCoreOutput
from corefw.plugin_system.manager import PluginManager
from corefw.server.api_channel import ServeOrder
from corefw.server.api_servers import ApiServers
from corefw.server.listener import listen_on
from corefw.server.server_pulse import ServerLimits
from corefw.testing.tiny_models import write_tiny_llama
from tests.e2e.ports import client_ports
from tests.engine.clients.scripted_client import ScriptedClient
from tests.engine.leftovers import children
from tests.sample_plugins.install import install_sample

# Limits are asserted at three times their stated value.
NOTICED_WITHIN_S = 3 * 2.0
# A loop that is merely slow on a busy machine must not look like the one that a test stops or holds up.
LIMITS = ServerLimits(stopped_s=3.0, loop_quiet_s=3.0, loop_s=8.0)
VOCABULARY = 259


@dataclass(frozen=True)
class Site:
    """Two servers over a scripted core."""

    url: str
    core: ScriptedClient
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def until_health_is(self, status: int, within_s: float = 200.0) -> str:
        """Ask over connections of their own, so that whoever can answers."""
        answer = None
        async with asyncio.timeout(within_s):
            while answer is None or answer.status_code != status:
                await asyncio.sleep(0.02)
                async with httpx.AsyncClient(timeout=30) as client:
                    with contextlib.suppress(httpx.TransportError):
                        answer = await client.get(f"{self.url}/health")
        return answer.text

    async def client_of_each(self) -> dict[int, tuple[asyncio.StreamReader, str]]:
        """For each server, a client that waits for a stream, and its request's id."""
        found: dict[int, tuple[asyncio.StreamReader, str]] = {}
        async with asyncio.timeout(60):
            while len(found) < 2:  # whom of the two a client meets is chance
                known = set(self.core.requests)
                reader, port = await self._ask()
                while not set(self.core.requests) - known:  # noqa: ASYNC110 - has no event
                    await asyncio.sleep(0.005)
                (owner,) = [pid for pid in api_servers() if port in client_ports(pid)]
                found[owner] = (reader, (set(self.core.requests) - known).pop())
        return found

    async def _ask(self) -> tuple[asyncio.StreamReader, int]:
        address = httpx.URL(self.url)
        reader, writer = await asyncio.open_connection(address.host, address.port)
        body = b'{"prompt": "a", "stream": true, "max_tokens": 9}'
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        self.writers.append(writer)
        return reader, writer.get_extra_info("sockname")[1]


def api_servers() -> set[int]:
    return {pid for pid in children() if "api_server_main" in Path(f"/proc/{pid}/cmdline").read_text()}


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    install_sample("inside", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    plugins = PluginManager.discover("+inside")
    keywords = {"model": str(write_tiny_llama(tmp_path / "model")), "dtype": "float32", "max_model_len": 64}
    config = with_tokenizer_size(resolve_config(UserArgs.from_keywords(**keywords), plugins), VOCABULARY)
    listener, core = listen_on(ServerConfig(port=0)), ScriptedClient()
    hub = EngineHub(core)

    def order(index: int) -> ServeOrder:
        return ServeOrder(
            config=config,
            server_config=ServerConfig(),
            index=index,
            url=listener.url,
            log_level="ERROR",
            search_path=tuple(sys.path),
            started_s=0.0,
        )

    running = asyncio.create_task(ApiServers(hub, order, listener, 2, 0.0, LIMITS).run())
    made = Site(listener.url, core)
    try:
        await made.until_health_is(200)
        yield made
    finally:
        for writer in made.writers:
            writer.close()
        os.kill(os.getpid(), signal.SIGTERM)  # taken by the servers' own handler
        await running
        await hub.close()
        listener.close()


async def stop(site: Site) -> tuple[int, str]:
    """Stop a server's process; returns which, and what is said of it."""
    pid = min(api_servers())
    os.kill(pid, signal.SIGSTOP)
    return pid, "no sign of life"


async def hold_up(site: Site) -> tuple[int, str]:
    """Have a plugin sleep in a server's event loop for longer than it may; returns which, and what is said of it."""
    address = httpx.URL(site.url)
    _, writer = await asyncio.open_connection(address.host, address.port)
    site.writers.append(writer)
    port = writer.get_extra_info("sockname")[1]
    writer.write(b"POST /sample/hold_up?seconds=600 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    async with asyncio.timeout(30):
        while not (owner := [pid for pid in api_servers() if port in client_ports(pid)]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return owner[0], "event loop"


@pytest.mark.parametrize("hang", [stop, hold_up])
async def test_it_is_told_of_and_replaced_and_its_clients_alone_are_cut(
    site: Site, hang: Callable[[Site], Awaitable[tuple[int, str]]]
) -> None:
    clients = await site.client_of_each()
    before = api_servers()
    hanging, said = await hang(site)
    (other,) = before - {hanging}
    text = await site.until_health_is(503, NOTICED_WITHIN_S)
    assert "API server" in text
    assert said in text
    assert await asyncio.wait_for(clients[hanging][0].read(), 30) == b""  # closed
    reader, request_id = clients[other]
    site.core.say(EngineCoreOutput(request_id=request_id, new_token_ids=[97]))
    site.core.end(request_id)
    assert (await asyncio.wait_for(reader.readuntil(b"[DONE]"), 30)).startswith(b"HTTP/1.1 200")
    await site.until_health_is(200)
    async with asyncio.timeout(60):
        while len(after := api_servers()) != 2:  # noqa: ASYNC110 - has no event
            await asyncio.sleep(0.02)
    assert after & before == {other}
    assert clients[hanging][1] in site.core.aborted
