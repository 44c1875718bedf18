"""Embeddings and their copies have a limit of all requests together, and give their room back."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

import httpx
import numpy as np
import pytest

from corefw.errors import CapacityError, RequestError
from corefw.server.embeds_memory import EmbedsMemory
from tests.frontend.embeds_files import npy
from tests.server.serving import engine_config, scripted, serving, wait_until

WIDTH, POSITIONS = 8, 16
NUM_BYTES = WIDTH * POSITIONS * 4  # of one copy
EMBEDS = base64.b64encode(npy(np.ones((POSITIONS, WIDTH), np.float32))).decode()


def embedding_config() -> Any:
    config = engine_config()
    info = dataclasses.replace(config.model_info, hf_config={"num_hidden_layers": 1, "hidden_size": WIDTH})
    return dataclasses.replace(
        config, model=dataclasses.replace(config.model, enable_prompt_embeds=True), model_info=info
    )


def body(n: int, **more: Any) -> dict[str, Any]:
    return {"prompt_embeds": EMBEDS, "n": n, "max_tokens": 900, **more}


def test_copies_of_all_requests_together_have_a_limit_and_give_their_room_back() -> None:
    limit = 9 * NUM_BYTES
    engine = scripted("x" * 1000, delay_s=0.01, config=embedding_config())
    with serving(engine, max_body_bytes=4096, max_total_body_bytes=limit) as server:
        url, memory = f"{server.url}/v1/completions", server.state.embeds_memory
        with httpx.stream("POST", url, json=body(6, stream=True), timeout=30) as running:
            assert running.status_code == 200
            assert memory.num_bytes == 6 * NUM_BYTES
            for stream in (False, True):
                refused = server.post("completions", body(4, stream=stream))
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
                assert "--max-total-body-bytes" in refused.json()["error"]["message"]
            assert server.post("completions", body(3, max_tokens=1)).status_code == 200
            assert server.post("completions", {"prompt": "a", "n": 9, "max_tokens": 1}).status_code == 200
        wait_until(lambda: memory.num_bytes == 0)
        assert server.post("completions", body(9, max_tokens=1)).status_code == 200
        never = server.post("completions", body(10, max_tokens=1))
        assert (never.status_code, never.json()["error"]["param"]) == (400, "n")
        assert memory.num_bytes == 0


def test_what_is_refused_takes_no_room() -> None:
    memory = EmbedsMemory(10)
    with memory.held(6):
        with pytest.raises(CapacityError), memory.held(5):
            pass
        with pytest.raises(RequestError), memory.held(11):
            pass
        with memory.held(4), memory.held(0):
            assert memory.num_bytes == 10
        assert memory.num_bytes == 6
    assert memory.num_bytes == 0
