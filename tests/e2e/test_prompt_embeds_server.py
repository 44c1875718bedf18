"""``prompt_embeds`` over HTTP: real servers, tiny weights."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
from safetensors.torch import load_file

from corefw.testing.server_process import Server, serving
from corefw.testing.tiny_models import write_tiny_llama
from tests.frontend.embeds_files import BAD, npy, safetensors, torch_save

IDS = [72, 101, 108, 108, 111, 44, 32, 119, 111, 114, 108, 100]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "return_token_ids": True}
FLAGS = ("--dtype", "float32", "--kv-cache-memory", "8MiB", "--max-num-batched-tokens", "16")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Server]:
    with serving(str(tiny), *FLAGS, "--enable-prompt-embeds", "--served-model-name", "tiny") as running:
        yield running


@pytest.fixture(scope="module")
def rows(tiny: Path) -> torch.Tensor:
    return load_file(tiny / "model.safetensors")["model.embed_tokens.weight"][torch.tensor(IDS)]


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def post(server: Server, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", json={**GREEDY, **body}, timeout=60)


def complete(server: Server, **body: Any) -> dict[str, Any]:
    answer = post(server, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def test_the_openai_client_gets_the_tokens_of_the_text_from_every_format(server: Server, rows: torch.Tensor) -> None:
    expected = complete(server, prompt=IDS)["choices"][0]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        for data in (npy(rows.numpy()), safetensors(x=rows), torch_save(rows)):
            answer = client.completions.create(
                model="tiny", prompt="", temperature=0, max_tokens=8,
                extra_body={"prompt_embeds": encoded(data), "ignore_eos": True, "return_token_ids": True},
            )  # fmt: skip
            assert answer.choices[0].text == expected["text"]
            assert answer.choices[0].model_extra is not None
            assert answer.choices[0].model_extra["token_ids"] == expected["token_ids"]
            assert "prompt_token_ids" not in answer.choices[0].model_extra
            assert answer.usage is not None
            assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(IDS), 8)


def test_several_prompts_and_outputs_come_in_order_embeddings_first(server: Server, rows: torch.Tensor) -> None:
    one = complete(server, prompt=[IDS[:5], IDS, [1, 2, 3]])
    expected = [choice["token_ids"] for choice in one["choices"]]
    embeds = [encoded(npy(rows[:5].numpy())), encoded(npy(rows.numpy()))]
    answer = complete(server, prompt_embeds=embeds, prompt=[[1, 2, 3]], n=2, temperature=1e-9)
    assert [choice["token_ids"] for choice in answer["choices"]] == [ids for ids in expected for _ in range(2)]
    assert answer["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]


def test_a_prompt_of_null_is_none(server: Server, rows: torch.Tensor) -> None:
    assert len(complete(server, prompt_embeds=encoded(npy(rows.numpy())), prompt=None)["choices"]) == 1


def test_a_stream_joined_is_the_whole_answer(server: Server, rows: torch.Tensor) -> None:
    embeds = encoded(torch_save(rows))
    whole = complete(server, prompt_embeds=embeds, logprobs=2)["choices"][0]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        stream = client.completions.create(
            model="tiny", prompt="", temperature=0, max_tokens=8, stream=True,
            extra_body={"prompt_embeds": embeds, "ignore_eos": True},
        )  # fmt: skip
        assert "".join(chunk.choices[0].text for chunk in stream) == whole["text"]
    assert len(whole["logprobs"]["token_logprobs"]) == 8


def test_the_beginning_can_be_cut_off(server: Server, rows: torch.Tensor) -> None:
    cut = complete(server, prompt_embeds=encoded(npy(rows.numpy())), truncate_prompt_tokens=7)
    assert cut["choices"][0]["token_ids"] == complete(server, prompt=IDS[-7:])["choices"][0]["token_ids"]
    assert cut["usage"]["prompt_tokens"] == 7


def test_what_is_longer_than_the_context_can_be_cut_else_it_is_refused(server: Server, rows: torch.Tensor) -> None:
    long = encoded(npy(np.concatenate([np.zeros((3000, rows.shape[1]), np.float32), rows.numpy()])))
    cut = complete(server, prompt_embeds=long, truncate_prompt_tokens=len(IDS))
    assert cut["choices"][0]["token_ids"] == complete(server, prompt=IDS)["choices"][0]["token_ids"]
    answer = post(server, prompt_embeds=[long])
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt_embeds[0]")


def test_memory_for_copies_is_that_of_all_prompts_of_a_request_together(server: Server, rows: torch.Tensor) -> None:
    megabytes = encoded(npy(np.zeros((2**20 // rows.shape[1], rows.shape[1]), np.float16)))  # 4 MiB in float32
    answer = post(server, prompt_embeds=[megabytes, megabytes], n=48)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "n"


def test_bad_embeddings_give_400_with_the_field_and_hurt_nobody(server: Server, rows: torch.Tensor) -> None:
    expected = complete(server, prompt=IDS)["choices"][0]["token_ids"]
    good = encoded(npy(rows.numpy()))
    for name, data in BAD.items():
        answer = post(server, prompt_embeds=[good, encoded(data)])
        assert answer.status_code == 400, name
        assert answer.json()["error"]["param"] == "prompt_embeds[1]", name
    assert complete(server, prompt_embeds=good)["choices"][0]["token_ids"] == expected


@pytest.mark.parametrize(("body", "param"), [
    ({"prompt_embeds": 7}, "prompt_embeds"),
    ({"prompt_embeds": []}, "prompt_embeds"),
    ({"prompt_embeds": [7]}, "prompt_embeds[0]"),
    ({"prompt_embeds": [None]}, "prompt_embeds[0]"),
    ({"prompt_embeds": {"a": 1}}, "prompt_embeds"),
    ({"prompt_embeds": "not base64!"}, "prompt_embeds"),
    ({"prompt_embeds": ["AAAA"] * 2049}, "prompt_embeds"),
], ids=str)  # fmt: skip
def test_other_shapes_give_400_with_the_field(server: Server, body: dict[str, Any], param: str) -> None:
    answer = post(server, **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(("extra", "param"), [
    ({"echo": True}, "echo"), ({"prompt_logprobs": 1}, "prompt_logprobs"), ({"max_tokens": 250}, "max_tokens"),
], ids=str)  # fmt: skip
def test_what_embeddings_cannot_have_gives_400(
    server: Server, rows: torch.Tensor, extra: dict[str, Any], param: str
) -> None:
    answer = post(server, prompt_embeds=encoded(npy(rows.numpy())), **extra)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_embeddings_that_overflow_inside_the_model_end_alone(server: Server, rows: torch.Tensor) -> None:
    expected = complete(server, prompt=IDS)["choices"][0]["token_ids"]
    post(server, prompt_embeds=encoded(npy((rows * 0 + 3e38).numpy())))
    assert complete(server, prompt=IDS)["choices"][0]["token_ids"] == expected
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_a_server_without_the_flag_says_how_to_switch_it_on(tiny: Path, rows: torch.Tensor) -> None:
    with serving(str(tiny), *FLAGS) as running:
        answer = post(running, prompt_embeds=encoded(npy(rows.numpy())))
    assert answer.status_code == 400
    assert "--enable-prompt-embeds" in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "prompt_embeds"
