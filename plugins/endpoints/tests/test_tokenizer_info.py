from __future__ import annotations

import httpx
import jinja2
import pytest

pytestmark = pytest.mark.model


def test_the_vocabulary_is_described(client: httpx.Client) -> None:
    info = client.get("/tokenizer_info").json()
    assert info["vocab_size"] == 49152
    assert info["model_max_length"] == client.get("/v1/models").json()["data"][0]["max_model_len"]
    assert (info["bos_token"], info["eos_token"], info["add_bos_token"]) == ("<|im_start|>", "<|im_end|>", False)
    end = {"content": "<|im_end|>", "lstrip": False, "rstrip": False, "special": True}
    assert info["added_tokens_decoder"]["2"] == end
    assert info["tokenizer_class"]


def test_control_tokens_have_the_ids_that_tokenize_gives_them(client: httpx.Client) -> None:
    info = client.get("/tokenizer_info").json()
    for token_id, token in info["added_tokens_decoder"].items():
        body = {"prompt": token["content"], "add_special_tokens": False}
        assert client.post("/tokenize", json=body).json()["tokens"] == [int(token_id)]


def test_the_chat_template_renders_to_the_servers_own_ids(client: httpx.Client) -> None:
    info = client.get("/tokenizer_info").json()
    messages = [{"role": "user", "content": "Name three colours."}]
    text = jinja2.Template(info["chat_template"], trim_blocks=True, lstrip_blocks=True).render(
        messages=messages, add_generation_prompt=True, bos_token=info["bos_token"], eos_token=info["eos_token"]
    )
    of_text = client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()
    assert of_text["tokens"] == client.post("/tokenize", json={"messages": messages}).json()["tokens"]
