"""Scored prompts over HTTP: each entry is transformers', whatever the cache, the chunks and the order of requests."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from corefw.testing.server_process import Server, serving
from corefw.testing.tiny_models import write_tiny_llama
from tests.e2e.reference import forced_logits

BLOCK_SIZE, BUDGET = 8, 10
LONGEST = 3 * BLOCK_SIZE + 1
# Another order than by length: longer prompts before and after shorter ones that begin like them.
LENGTHS = sorted(range(1, LONGEST + 1), key=lambda length: (7 * length) % (LONGEST + 1))
# Letters and signs of ASCII: of other bytes alone, several have the same text.
PROMPT = [(17 * position + 5) % 90 for position in range(LONGEST)]
KEYS = ("tokens", "token_logprobs", "top_logprobs")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    flags = ("--dtype", "float32", "--served-model-name", "tiny", "--max-model-len", "128", "--max-num-seqs", "8")
    sizes = ("--block-size", str(BLOCK_SIZE), "--max-num-batched-tokens", str(BUDGET), "--kv-cache-memory", "4MiB")
    with serving(str(model), *flags, *sizes) as running:
        yield running
        running.wait_idle()
        assert "Traceback" not in running.log


@pytest.fixture(scope="module")
def expected(model: Path) -> torch.Tensor:
    """[T, V] log-probabilities after each token of the longest prompt."""
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
    return torch.log_softmax(forced_logits(reference, PROMPT), -1)


def post(server: Server, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 1, "temperature": 0, **fields}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)


def test_every_length_is_scored_like_transformers_cold_and_warm(server: Server, expected: torch.Tensor) -> None:
    for length in [*LENGTHS, *LENGTHS]:
        prompt = PROMPT[:length]
        choice = post(server, prompt=prompt, echo=True, logprobs=2).json()["choices"][0]
        entries = choice["logprobs"]
        assert len(entries["token_logprobs"]) == len(entries["tokens"]) == len(entries["text_offset"]) == length + 1
        assert entries["token_logprobs"][0] is None
        theirs = expected[torch.arange(length - 1), torch.tensor(prompt[1:], dtype=torch.long)].tolist()
        theirs.append(expected[length - 1].max().item())
        assert entries["token_logprobs"][1:] == pytest.approx(theirs, abs=1e-3)
        for token, logprob, top in list(zip(*(entries[key] for key in KEYS), strict=True))[1:-1]:
            assert top[token] == logprob


@pytest.mark.parametrize("stream", [True, False])
def test_no_tokens_asked_for_is_the_prompt_or_a_refusal(server: Server, stream: bool) -> None:
    assert post(server, max_tokens=0, echo=True, logprobs=1, stream=stream).status_code == 200
    assert post(server, max_tokens=0, stream=stream).status_code == 400
    assert post(server).json()["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("fields", [
    {"top_k": 1}, {"allowed_token_ids": [70]}, {"logit_bias": {str(i): -100 for i in range(0, 256, 2)}},
    {"min_p": 1.0, "temperature": 1, "top_p": 0.01},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("echo", [True, False])
def test_figures_of_tokens_that_cannot_come_are_json_and_finite(
    server: Server, fields: dict[str, Any], echo: bool
) -> None:
    answer = post(server, logprobs=5, max_tokens=4, echo=echo, **fields)
    assert answer.status_code == 200, answer.text

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is no JSON")

    entries = json.loads(answer.text, parse_constant=refuse)["choices"][0]["logprobs"]
    values = [value for top in entries["top_logprobs"] if top for value in top.values()]
    assert values
    assert all(math.isfinite(value) for value in values)
