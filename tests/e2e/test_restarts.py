"""A server whose engine dies: its clients wait, and get what they would have got."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import httpx
import pytest

from corefw.testing.server_process import Server, is_alive, launch, serving, stop
from corefw.testing.tiny_models import write_tiny_llama
from tests.sample_plugins.install import install_sample

NUM_STREAMS = 32
# A limit of liveness is asserted at three times its stated value.
NOTICED_WITHIN_S = 3 * 2.0
NUM_KILLS = (3, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(3000)]))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_llama(tmp_path_factory.mktemp("tiny"), max_position_embeddings=4096))


def flags(model: str, *more: str) -> tuple[str, ...]:
    return (model, "--dtype", "float32", "--kv-cache-memory", "64MiB", "--served-model-name", "tiny", *more)


def body(index: int, max_tokens: int) -> dict[str, Any]:
    """Greedy ones, seeded ones, with penalties, stop strings, log-probabilities."""
    asked: dict[str, Any] = {
        "model": "tiny",
        "prompt": f"{index} bottles stand on a wall, and {index * 7} more lie under it",
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
    }
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"temperature": 1.0, "seed": index},
        {"temperature": 0.8, "seed": index, "presence_penalty": 0.5, "repetition_penalty": 1.1, "top_p": 0.9},
        {"temperature": 1.0, "seed": index, "stop": ["zzqx", "\u0007\u0007\u0007"], "logprobs": 2},
        {"temperature": 1.0, "seed": index, "n": 2},
    )
    return asked | kinds[index % len(kinds)]


class Answer:
    """What one client got."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self.logprobs: dict[int, list[float]] = {}
        self.reasons: dict[int, str] = {}
        self.usage: dict[str, Any] | None = None
        self.errors: list[str] = []
        self.error_s = 0.0

    def take(self, line: str) -> None:
        if not line.startswith("data: {"):
            return
        event = json.loads(line[6:])
        if "error" in event:
            self.errors.append(event["error"]["message"])
            self.error_s = time.monotonic()
            return
        self.usage = event.get("usage") or self.usage
        for choice in event["choices"]:
            index = choice["index"]
            self.texts[index] = self.texts.get(index, "") + choice["text"]
            self.reasons[index] = choice["finish_reason"] or self.reasons.get(index, "")
            if choice.get("logprobs"):
                self.logprobs.setdefault(index, []).extend(choice["logprobs"]["token_logprobs"])

    def seen(self) -> tuple[object, ...]:
        """All but what the cache decides."""
        counts = None if self.usage is None else (self.usage["prompt_tokens"], self.usage["completion_tokens"])
        return (self.texts, self.reasons, counts, self.errors)


async def ask(client: httpx.AsyncClient, asked: dict[str, Any]) -> Answer:
    answer = Answer()
    async with client.stream("POST", "/v1/completions", json=asked) as response:
        if response.status_code != 200:
            answer.take("data: " + (await response.aread()).decode())
        else:
            async for line in response.aiter_lines():
                answer.take(line)
    return answer


async def ask_all(url: str, bodies: list[dict[str, Any]], meanwhile: Callable[[], Any] | None = None) -> list[Answer]:
    """All at once; ``meanwhile`` makes a coroutine that goes on until they are answered."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        other = asyncio.create_task(meanwhile()) if meanwhile else None
        answers = await asyncio.gather(*(ask(client, asked) for asked in bodies))
        if other is not None:
            await other
    return answers


async def ask_while(url: str, bodies: list[dict[str, Any]], work: Coroutine[Any, Any, None]) -> list[list[Answer]]:
    """All at once, each again and again until the work is done."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        working = asyncio.create_task(work)

        async def ask_often(asked: dict[str, Any]) -> list[Answer]:
            answers = [await ask(client, asked)]
            while not working.done():
                answers.append(await ask(client, asked))
            return answers

        answers = await asyncio.gather(*map(ask_often, bodies))
        await working
    return answers


def core_of(server: Server) -> int:
    """Process id of the engine core."""
    (core,) = server.running("core_main")
    return core


def health(server: Server, path: str = "/health") -> int:
    return httpx.get(f"{server.url}{path}", timeout=10).status_code


async def wait_for_health(server: Server, status: int, within_s: float) -> None:
    began_s = time.monotonic()
    async with httpx.AsyncClient(timeout=10) as client:
        while (await client.get(f"{server.url}/health")).status_code != status:
            assert time.monotonic() - began_s < within_s, f"/health wasn't {status} within {within_s} s"
            await asyncio.sleep(0.02)


async def wait_for_running(server: Server, num_requests: int) -> None:
    async with asyncio.timeout(30):
        while await asyncio.to_thread(server.metric, "corefw:num_requests_running") != num_requests:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def kill(server: Server, module: str, num_kills: int, draw: random.Random) -> None:
    """One of these processes at random moments, each time after the engine has come back."""
    for _ in range(num_kills):
        await asyncio.sleep(draw.uniform(0.2, 0.8))
        os.kill(draw.choice(server.running(module)), signal.SIGKILL)
        await wait_for_health(server, 503, NOTICED_WITHIN_S)
        assert (await asyncio.to_thread(health, server, "/ping")) == 200
        await wait_for_health(server, 200, 90)


@pytest.fixture(scope="module")
def server(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With a plugin that can kill the engine."""
    site = tmp_path_factory.mktemp("site")
    install_sample("poison", site)
    with serving(*flags(model, "--logits-processors", "kills_at"), env={"PYTHONPATH": str(site)}) as running:
        yield running


@pytest.mark.parametrize("num_kills", NUM_KILLS)
def test_every_stream_is_that_of_an_undisturbed_run(server: Server, num_kills: int) -> None:
    check_streams_survive(server, "core_main", num_kills)


@pytest.mark.parametrize("num_kills", [1, *NUM_KILLS[1:]])
def test_every_stream_survives_a_worker_of_two(model: str, num_kills: int) -> None:
    with serving(*flags(model, "--tensor-parallel-size", "2")) as ranks:
        assert len(ranks.running("worker_main")) == 2
        check_streams_survive(ranks, "worker_main", num_kills)


def check_streams_survive(server: Server, module: str, num_kills: int) -> None:
    bodies = [body(index, 120) for index in range(NUM_STREAMS)]
    draw, num_before = random.Random(num_kills), num_restarts(server)
    undisturbed = asyncio.run(ask_all(server.url, bodies))
    disturbed = asyncio.run(ask_while(server.url, bodies, kill(server, module, num_kills, draw)))
    server.wait_idle(20)
    assert num_restarts(server) == num_before + num_kills
    assert not any(answer.errors for answer in undisturbed)
    for index, (wanted, answers) in enumerate(zip(undisturbed, disturbed, strict=True)):
        for got in answers:
            assert got.seen() == wanted.seen(), f"stream {index}"
            for choice, logprobs in wanted.logprobs.items():
                assert got.logprobs[choice] == pytest.approx(logprobs, abs=1e-4)


def num_restarts(server: Server) -> int:
    return round(server.metric("corefw:engine_restarts_total"))


def test_a_poisonous_request_fails_alone(server: Server) -> None:
    innocents = [body(index, 40) for index in range(16)]
    poison = body(0, 40) | {"vllm_xargs": {"kills_at": 12}}
    undisturbed = asyncio.run(ask_all(server.url, innocents))
    *others, bad = asyncio.run(ask_all(server.url, [*innocents, poison]))
    server.wait_idle(20)
    assert [answer.seen() for answer in others] == [answer.seen() for answer in undisturbed]
    assert len(bad.errors) == 1
    assert "crashed each time it computed this request" in bad.errors[0]


def test_a_stopped_engine_isnt_healthy(server: Server) -> None:
    core = core_of(server)
    os.kill(core, signal.SIGSTOP)
    asyncio.run(wait_for_health(server, 503, NOTICED_WITHIN_S))
    assert health(server, "/ping") == 200
    os.kill(core, signal.SIGCONT)
    asyncio.run(wait_for_health(server, 200, NOTICED_WITHIN_S))
    assert core_of(server) == core


def test_without_restarts_every_client_is_told_and_the_server_ends(model: str) -> None:
    alone = launch(*flags(model, "--no-restart-engine"))
    killed_s = 0.0

    async def kill_core() -> None:
        nonlocal killed_s
        await wait_for_running(alone, 8)
        killed_s = time.monotonic()
        os.kill(core_of(alone), signal.SIGKILL)
        await wait_for_health(alone, 503, NOTICED_WITHIN_S)

    try:
        answers = asyncio.run(ask_all(alone.url, [body(i, 3000) | {"n": 1} for i in range(8)], kill_core))
        for answer in answers:
            assert len(answer.errors) == 1
            assert "SIGKILL" in answer.errors[0]
            assert answer.error_s - killed_s < NOTICED_WITHIN_S
        assert alone.process.wait(60) == 1
    finally:
        stop(alone)


@pytest.mark.slow
def test_a_drain_waits_for_a_restart(model: str) -> None:
    alone = launch(*flags(model))

    async def disturb() -> None:
        await wait_for_running(alone, 2)
        os.kill(core_of(alone), signal.SIGKILL)
        await asyncio.sleep(0.1)
        alone.process.send_signal(signal.SIGTERM)

    try:
        answers = asyncio.run(ask_all(alone.url, [body(0, 300), body(1, 300)], disturb))
        children = alone.children()
        assert alone.process.wait(60) == 0
        assert [answer.reasons for answer in answers] == [{0: "length"}] * 2
        assert [answer.errors for answer in answers] == [[], []]
        assert not any(is_alive(pid) for pid in children)
    finally:
        stop(alone)
