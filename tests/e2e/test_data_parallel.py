"""Several engines behind one server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from corefw.llm import LLM, SamplingParams
from corefw.testing.server_process import Server, is_alive, serving
from corefw.testing.tiny_models import write_tiny_llama

PROMPTS = [f"{number} little words and {'so on ' * (number % 5)}" for number in range(12)]
NUM_TOKENS = 24
SETTINGS = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 8, "kv_cache_memory": 4 * 2**20}
FLAGS = [word for name, value in SETTINGS.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def expected(model: Path) -> list[str]:
    """What one engine in this process says."""
    with LLM(str(model), **SETTINGS) as llm:
        params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, seed=1)
        return [result.outputs[0].text for result in llm.generate(PROMPTS, params)]


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    with serving(str(model), "--served-model-name", "tiny", "--data-parallel-size", "2", *FLAGS) as running:
        yield running


async def complete(server: Server, prompts: list[str]) -> list[str]:
    body = {"model": "tiny", "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        asked = (client.post("/v1/completions", json={**body, "prompt": prompt}) for prompt in prompts)
        return [answer.json()["choices"][0]["text"] for answer in await asyncio.gather(*asked)]


def test_two_engines_answer_as_one_does_and_both_work(server: Server, expected: list[str]) -> None:
    assert asyncio.run(complete(server, PROMPTS)) == expected
    of_engine = (f'{{engine="{index}",model_name="tiny"}}' for index in (0, 1))
    num_tokens = [server.metric(f"corefw:engine_generation_tokens_total{labels}") for labels in of_engine]
    assert num_tokens == [len(PROMPTS) // 2 * NUM_TOKENS] * 2


def test_what_a_client_no_longer_wants_ends_in_its_engine(server: Server) -> None:
    body = {"model": "tiny", "max_tokens": 200, "temperature": 0, "ignore_eos": True, "stream": True}
    for prompt in PROMPTS[:2]:  # unlike ones, so both engines get one
        with httpx.stream("POST", f"{server.url}/v1/completions", json={**body, "prompt": prompt}) as answer:
            next(answer.iter_lines())
    server.wait_idle()
    assert server.metric('corefw:requests_total{finish_reason="abort",model_name="tiny"}') == 2


def test_a_killed_server_leaves_no_engine(server: Server) -> None:
    children = server.children()
    assert len(children) >= 2
    server.process.kill()
    server.process.wait(10)
    deadline = time.monotonic() + 15
    while any(map(is_alive, children)):
        assert time.monotonic() < deadline, children
        time.sleep(0.05)
