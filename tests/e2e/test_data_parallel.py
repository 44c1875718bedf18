"""Several engines behind one server, and several processes that answer its clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from corefw.llm import LLM, SamplingParams
from corefw.testing.server_process import Server, is_alive, launch, stop, wait_until
from corefw.testing.tiny_models import write_tiny_llama
from tests.e2e.ports import client_ports

PROMPTS = [f"{number} little words and {'so on ' * (number % 5)}" for number in range(12)]
NUM_TOKENS = 24
SETTINGS = {"dtype": "float32", "max_model_len": 4096, "max_num_seqs": 8, "kv_cache_memory": 32 * 2**20}
FLAGS = [word for name, value in SETTINGS.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), max_position_embeddings=4096)


@pytest.fixture(scope="module")
def expected(model: Path) -> list[str]:
    """What one engine in this process says."""
    with LLM(str(model), **SETTINGS) as llm:
        params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, seed=1)
        return [result.outputs[0].text for result in llm.generate(PROMPTS, params)]


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    several = ("--data-parallel-size", "2", "--api-server-count", "2", "--shutdown-timeout", "5")
    running = launch(str(model), "--served-model-name", "tiny", *several, *FLAGS)
    yield running
    stop(running)


def metric(server: Server, name: str, **labels: object) -> float:
    listed = ",".join(f'{key}="{value}"' for key, value in sorted({**labels, "model_name": "tiny"}.items()))
    return server.metric(f"corefw:{name}{{{listed}}}")


def known_to_all(server: Server, name: str, **labels: object) -> float:
    """A figure once every API server has it: each tells the others twice a second, and any of them is asked."""
    seen: list[float] = []
    deadline = time.monotonic() + 60
    while len(seen) < 8 or len(set(seen[-8:])) > 1:
        assert time.monotonic() < deadline, f"{name} goes on changing: {seen}"
        seen.append(metric(server, name, **labels))
        time.sleep(0.25)
    return seen[-1]


async def complete(server: Server, prompts: list[str]) -> list[str]:
    """Each over a connection of its own."""
    body = {"model": "tiny", "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}

    async def ask(prompt: str) -> str:
        async with httpx.AsyncClient(base_url=server.url, timeout=240) as client:
            answer = await client.post("/v1/completions", json={**body, "prompt": prompt})
        return str(answer.json()["choices"][0]["text"])

    return await asyncio.gather(*map(ask, prompts))


def test_two_engines_answer_as_one_does_and_both_work(server: Server, expected: list[str]) -> None:
    assert asyncio.run(complete(server, PROMPTS)) == expected
    num_tokens = [known_to_all(server, "engine_generation_tokens_total", engine=index) for index in (0, 1)]
    assert sum(num_tokens) == len(PROMPTS) * NUM_TOKENS
    # Each API server shares out what reaches it, so the halves differ by what the kernel's sharing of connections
    # makes of it; that an engine gets less than a quarter would mean that nobody shares out.
    assert min(num_tokens) >= len(PROMPTS) // 4 * NUM_TOKENS
    for pid in server.running("api_server_main"):
        assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()


def test_whatever_process_answered_the_figures_are_those_of_all(server: Server) -> None:
    before = known_to_all(server, "requests_total", finish_reason="length")
    asyncio.run(complete(server, PROMPTS))
    for _ in range(4):  # over connections of their own, so either process is asked
        wait_until(lambda: metric(server, "requests_total", finish_reason="length") == before + len(PROMPTS))


def test_what_a_client_no_longer_wants_ends_in_its_engine(server: Server) -> None:
    before = known_to_all(server, "requests_total", finish_reason="abort")
    body = {"model": "tiny", "max_tokens": 4000, "temperature": 0, "ignore_eos": True, "stream": True}
    for prompt in PROMPTS[:2]:  # unlike ones, so both engines get one
        with httpx.stream("POST", f"{server.url}/v1/completions", json={**body, "prompt": prompt}) as answer:
            next(answer.iter_lines())
    server.wait_idle()
    wait_until(lambda: metric(server, "requests_total", finish_reason="abort") == before + 2)


def test_an_engine_that_is_killed_comes_back_and_its_requests_go_on(server: Server, expected: list[str]) -> None:
    (killed, other) = server.running("core_main")

    async def kill_meanwhile() -> list[str]:
        answers = asyncio.create_task(complete(server, PROMPTS))
        await asyncio.sleep(0.1)
        os.kill(killed, signal.SIGKILL)
        return await answers

    assert asyncio.run(kill_meanwhile()) == expected
    wait_until(lambda: len(server.running("core_main")) == 2 and server.log.count("is back after its death") == 1)
    assert other in server.running("core_main")
    assert asyncio.run(complete(server, PROMPTS)) == expected


async def stream_lines(server: Server, prompt: str) -> tuple[int, list[str]]:
    """Over a connection of its own, until it ends or breaks; the client's port, and what came."""
    body = {"model": "tiny", "max_tokens": 200, "temperature": 0, "ignore_eos": True, "stream": True, "prompt": prompt}
    lines: list[str] = []
    port = 0
    async with httpx.AsyncClient(base_url=server.url, timeout=240) as client:
        with contextlib.suppress(httpx.TransportError):
            async with client.stream("POST", "/v1/completions", json=body) as answer:
                port = answer.extensions["network_stream"].get_extra_info("client_addr")[1]
                async for line in answer.aiter_lines():
                    lines.append(line)
    return port, [line for line in lines if line]


def test_an_api_server_that_is_killed_is_started_again_and_its_own_streams_alone_are_cut(
    server: Server, expected: list[str]
) -> None:
    first, second = server.running("api_server_main")
    num_starts = server.log.count("serving tiny on")

    async def kill_meanwhile() -> tuple[set[int], list[tuple[int, list[str]]]]:
        streams = [asyncio.create_task(stream_lines(server, prompt)) for prompt in PROMPTS]
        await asyncio.to_thread(server.wait_busy)
        os.kill(first, signal.SIGSTOP)  # so that it takes nobody in between the count and its death
        own = client_ports(first)  # whom of the two a client meets is chance
        os.kill(first, signal.SIGKILL)
        return own, await asyncio.gather(*streams)

    own, streams = asyncio.run(kill_meanwhile())
    assert {port for port, lines in streams if lines[-1:] != ["data: [DONE]"]} <= own | {0}
    assert sum(port == 0 for port, _ in streams) <= len(own - {port for port, _ in streams})
    wait_until(lambda: len(set(server.running("api_server_main")) - {first, second}) == 1)
    wait_until(lambda: server.log.count("serving tiny on") == num_starts + 1)
    assert second in server.running("api_server_main")
    server.wait_idle()
    assert asyncio.run(complete(server, PROMPTS)) == expected
    assert "API server 0 was killed by signal 9" in server.log or "API server 1 was killed by signal 9" in server.log


def test_counters_go_on_when_every_api_server_is_another_one(server: Server) -> None:
    server.wait_idle()
    names = ("generation_tokens_total", "request_generation_tokens_count", "e2e_request_latency_seconds_count")
    before = [known_to_all(server, name) for name in names]
    assert min(before) > 0
    num_starts = server.log.count("serving tiny on")
    for pid in server.running("api_server_main"):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: server.log.count("serving tiny on") == num_starts + 2)
    assert [known_to_all(server, name) for name in names] == before  # the engines are idle, nothing is counted twice


def test_a_terminated_server_leaves_nothing(server: Server) -> None:
    children = server.children()
    assert len(server.running("api_server_main")) == 2
    server.process.terminate()
    assert server.process.wait(60) == 0
    wait_until(lambda: not any(map(is_alive, children)))


def test_a_killed_server_leaves_nothing(model: Path) -> None:
    server = launch(str(model), "--served-model-name", "tiny", "--api-server-count", "2", *FLAGS)
    children = server.children()
    assert len(server.running("api_server_main")) == 2
    server.process.kill()
    server.process.wait(10)
    wait_until(lambda: not any(map(is_alive, children)), 15)
    stop(server)
