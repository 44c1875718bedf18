"""Requests that are more than their ids when the engine dies: embeddings go on as they were, blocks come from files."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from corefw.testing.server_process import Server, serving
from corefw.testing.tiny_models import TINY_LLAMA, write_tiny_llama
from tests.e2e.test_restarts import Answer, ask_all, ask_while, flags, kill, num_restarts
from tests.sample_plugins.install import install_sample

NUM_STREAMS, NUM_TOKENS = 12, 80
NUM_KILLS = (2, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]))
ONE, TWO_RANKS = (), ("--tensor-parallel-size", "2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_llama(tmp_path_factory.mktemp("tiny"), max_position_embeddings=4096))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("sync", ONE), id="one"),
        pytest.param(("async", TWO_RANKS), id="two-ranks", marks=pytest.mark.slow),
    ],
)
def server(request: pytest.FixtureRequest, model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Takes embeddings, and keeps blocks in files, which it reads slowly."""
    site, (mode, ranks) = tmp_path_factory.mktemp("site"), request.param
    install_sample("file_connector", site)
    config = json.dumps({"path": str(tmp_path_factory.mktemp("kv")), "mode": mode, "delay_s": 0.01})
    connector = ("--plugins", "file", "--kv-connector", "file", "--kv-connector-config", config)
    with serving(*flags(model, "--enable-prompt-embeds", *connector, *ranks), env={"PYTHONPATH": str(site)}) as running:
        yield running


def body(index: int, salt: str) -> dict[str, Any]:
    """Embeddings, or text with a beginning that others have as well; under another salt no block is known."""
    asked: dict[str, Any] = {
        "model": "tiny",
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_salt": salt,
        "seed": index,
        "temperature": 1.0 if index % 4 > 1 else 0,
    }
    if index % 2:
        return asked | {"prompt": "So many little words that stand before. " * 2 + f"{index} bottles"}
    rows = np.random.default_rng(index).normal(size=(20 + 3 * index, TINY_LLAMA["hidden_size"]))
    file = io.BytesIO()
    np.save(file, rows.astype(np.float32))
    return asked | {"prompt": "", "prompt_embeds": base64.b64encode(file.getvalue()).decode()}


@pytest.mark.parametrize("num_kills", NUM_KILLS)
def test_every_stream_is_that_of_an_undisturbed_run(server: Server, num_kills: int) -> None:
    bodies = [body(index, f"undisturbed {num_kills}") for index in range(NUM_STREAMS)]
    undisturbed = asyncio.run(ask_all(server.url, bodies))
    assert not any(answer.errors for answer in undisturbed)
    assert len({str(answer.texts) for answer in undisturbed}) > NUM_STREAMS / 2
    for module in ("core_main", "worker_main") if "run by executor mp" in server.log else ("core_main",):
        before = num_restarts(server)
        # The one half of the blocks is in files from the beginning, the other comes there meanwhile.
        bodies = [body(index, f"undisturbed {num_kills}" if index % 3 else module) for index in range(NUM_STREAMS)]
        work = kill(server, module, num_kills, random.Random(num_kills))
        disturbed = asyncio.run(ask_while(server.url, bodies, work))
        server.wait_idle(20)
        assert num_restarts(server) == before + num_kills
        for index, (wanted, answers) in enumerate(zip(undisturbed, disturbed, strict=True)):
            for got in answers:
                assert got.seen() == wanted.seen(), f"stream {index}"
        assert sum(map(cached_tokens, (answer for answers in disturbed for answer in answers))) > 0


def cached_tokens(answer: Answer) -> int:
    assert answer.usage is not None
    return int((answer.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))
