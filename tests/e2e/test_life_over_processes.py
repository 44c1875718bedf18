"""Whatever processes a server is made of: clients that leave, streams side by side, processes that stop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from corefw.testing.server_process import Server, is_alive, launch, serving, stop, wait_until
from corefw.testing.tiny_models import write_tiny_llama
from tests.e2e.ports import port_for_two
from tests.server.raw_client import send

PAIR: tuple[str, ...] = ()
API_SERVERS = ("--api-server-count", "2")
ENGINES = ("--data-parallel-size", "2")
RANKS = ("--tensor-parallel-size", "2")
FLAGS = ("--dtype", "float32", "--served-model-name", "tiny", "--max-num-seqs", "4", "--kv-cache-memory", "64MiB")
ENDLESS = {"model": "tiny", "max_tokens": 4000, "temperature": 0, "ignore_eos": True}
LONG_PROMPT = "word " * 600
NUM_STREAMS, NUM_TOKENS = 8, 192
# Limits are asserted at three times their stated value.
ENDS_WITHIN_S = 3 * 1.0
NOTICED_WITHIN_S = 3 * 2.0
GONE_WITHIN_S = 3 * 5.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), max_position_embeddings=8192)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(PAIR, id="one-pair", marks=pytest.mark.slow),
        pytest.param(API_SERVERS, id="two-api-servers", marks=pytest.mark.slow),
        pytest.param(ENGINES, id="two-engines", marks=pytest.mark.slow),
        pytest.param(RANKS, id="two-ranks", marks=pytest.mark.slow),
        pytest.param((*API_SERVERS, *ENGINES, *RANKS), id="two-of-each", marks=pytest.mark.slow),
    ],
)
def server(request: pytest.FixtureRequest, model: Path) -> Iterator[Server]:
    with serving(str(model), *FLAGS, *request.param, "--port", str(port_for_two())) as running:
        yield running


def aborted(server: Server) -> float:
    return server.metric('corefw:requests_total{finish_reason="abort",model_name="tiny"}')


def health(server: Server) -> int:
    return httpx.get(f"{server.url}/health", timeout=10).status_code


def leave(server: Server, asked: dict[str, Any], running: int, waiting: int = 0) -> None:
    """Send requests, wait until they run or wait, and go."""
    connections = [send(server, {**asked, "prompt": f"{index}: {asked['prompt']}"}) for index in range(running)]
    connections += [send(server, {**asked, "prompt": f"{index}: late"}) for index in range(waiting)]
    wait_until(lambda: server.metric("corefw:num_requests_running") == running)
    wait_until(lambda: server.metric("corefw:num_requests_waiting") == waiting)
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt", ["Once", LONG_PROMPT], ids=["short", "long"])
def test_what_a_client_leaves_ends_at_once(server: Server, stream: bool, prompt: str) -> None:
    before = aborted(server)
    leave(server, {**ENDLESS, "prompt": prompt, "stream": stream}, running=2)
    server.wait_idle(ENDS_WITHIN_S)
    wait_until(lambda: aborted(server) == before + 2, 5)


def test_all_figures_are_zero_soon_after_twenty_clients_left_that_ran_or_waited(server: Server) -> None:
    num_places = 4 * max(1, len(server.running("core_main")))
    before = aborted(server)
    leave(server, {**ENDLESS, "prompt": "Once"}, running=num_places, waiting=20 - num_places)
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage")
    for _ in range(4):  # any of several API servers
        wait_until(lambda: not any(server.metric(f"corefw:{name}") for name in names), ENDS_WITHIN_S)
    wait_until(lambda: aborted(server) == before + 20, 5)


async def _streamed(client: httpx.AsyncClient, index: int) -> tuple[str, list[float]]:
    """The text, and when its pieces came."""
    body = {**ENDLESS, "prompt": f"{index} bottles", "max_tokens": NUM_TOKENS, "stream": True}
    lines, times = [], []
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                lines.append(line[6:])
                times.append(time.monotonic())
    return "".join(httpx.Response(200, text=line).json()["choices"][0]["text"] for line in lines), times


def test_streams_run_side_by_side_and_say_what_each_says_alone(server: Server) -> None:
    async def ask(together: bool) -> list[tuple[str, list[float]]]:
        limits = httpx.Limits(max_keepalive_connections=0)  # each request meets the API server that it meets
        async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as client:
            asking = [_streamed(client, index) for index in range(NUM_STREAMS)]
            return await asyncio.gather(*asking) if together else [await one for one in asking]

    alone, together = asyncio.run(ask(together=False)), asyncio.run(ask(together=True))
    assert [text for text, _ in together] == [text for text, _ in alone]
    first_end = min(times[-1] for _, times in together)
    assert sum(times[0] < first_end for _, times in together) >= 4  # as many as one engine has places
    gaps = [later - earlier for _, times in together for earlier, later in itertools.pairwise(times)]
    assert max(gaps) < NOTICED_WITHIN_S


def test_stopped_engines_are_not_healthy_and_what_waits_for_them_comes_when_they_go_on(server: Server) -> None:
    body = {**ENDLESS, "prompt": "2 bottles", "max_tokens": NUM_TOKENS}
    answers = []
    with httpx.Client(base_url=server.url, timeout=60) as client:
        answers.append(client.post("/v1/completions", json=body).json()["choices"])
        stopped = server.running("core_main")
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(lambda: health(server) == 503, NOTICED_WITHIN_S)
            asking = send(server, body)
            assert httpx.get(f"{server.url}/ping").status_code == 200
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        wait_until(lambda: health(server) == 200, NOTICED_WITHIN_S)
        assert _received(asking, until=b"finish_reason").startswith(b"HTTP/1.1 200")
        answers.append(client.post("/v1/completions", json=body).json()["choices"])
    assert answers[0] == answers[1]
    assert server.running("core_main") == stopped


def test_killed_engines_are_not_healthy_and_what_they_were_at_is_as_if_undisturbed(server: Server) -> None:
    async def all_texts(meanwhile: Callable[[], None]) -> list[str]:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            asking = [asyncio.create_task(_streamed(client, index)) for index in range(NUM_STREAMS)]
            await asyncio.sleep(0.05)
            await asyncio.to_thread(meanwhile)
            return [text for text, _ in await asyncio.gather(*asking)]

    def kill() -> None:
        for pid in server.running("core_main"):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: health(server) == 503, NOTICED_WITHIN_S)

    undisturbed = asyncio.run(all_texts(lambda: None))
    assert asyncio.run(all_texts(kill)) == undisturbed
    wait_until(lambda: health(server) == 200, 60)
    server.wait_idle()


def test_a_front_end_that_is_killed_takes_all_along_and_the_port_is_free(server: Server, model: Path) -> None:
    """The last test: the server is gone."""
    shared = set(Path("/dev/shm").iterdir())
    running = send(server, {**ENDLESS, "prompt": "Once", "stream": True})
    with contextlib.closing(running):
        running.recv(64)
        children = server.children()
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait(10)
    wait_until(lambda: not any(map(is_alive, children)), GONE_WITHIN_S)
    assert {path for path in Path("/dev/shm").iterdir() if not held(path)} <= shared
    again = launch(str(model), *FLAGS, "--port", str(server.port))
    assert again.port == server.port
    stop(again)


def held(path: Path) -> bool:
    """Whether a living process has a file open or mapped: then it is another's, not what was left behind."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(path) in (process / "maps").read_text():
                return True
            if any(link.readlink() == path for link in (process / "fd").iterdir()):
                return True
    return False


def _received(connection: socket.socket, until: bytes) -> bytes:
    received = b""
    while until not in received and (part := connection.recv(65536)):
        received += part
    connection.close()
    return received
