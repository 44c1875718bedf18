"""``/v1/chat/completions`` over a real socket, and both routes through the official client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from corefw.testing.scripted_engine import ScriptedFailure
from tests.server.serving import EOS_ID, Running, events, scripted, serving

HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(scripted("Good 👋 day", num_cached_tokens=2)) as running:
        yield running


def chat(server: Running, **body: Any) -> dict[str, Any]:
    answer = server.post("chat/completions", {"messages": HI, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def chunks(server: Running, **body: Any) -> list[dict[str, Any]]:
    answer = server.post("chat/completions", {"messages": HI, "stream": True, **body})
    assert answer.status_code == 200, answer.text
    *data, done = events(answer)
    assert done == "[DONE]"
    return [json.loads(item) for item in data]


def test_the_answer_has_the_shape_of_the_api(server: Running) -> None:
    answer = chat(server, model="demo")
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "model": "demo",
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Good 👋 day", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 20,
            "completion_tokens": 14,
            "total_tokens": 34,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
    }


def test_a_stream_is_role_then_text_then_end(server: Running) -> None:
    parts = chunks(server)
    choices = [part["choices"][0] for part in parts]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in choice["delta"] for choice in choices[1:])
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "Good 👋 day"
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert choices[-1]["delta"] == {}
    assert {part["object"] for part in parts} == {"chat.completion.chunk"}
    assert all("\ufffd" not in choice["delta"].get("content", "") for choice in choices)


def test_each_of_n_choices_has_its_own_role_text_and_end(server: Running) -> None:
    roles, texts, ends = dict.fromkeys(range(3), 0), dict.fromkeys(range(3), ""), dict.fromkeys(range(3), 0)
    for choice in (c for part in chunks(server, n=3, seed=1) for c in part["choices"]):
        index = choice["index"]
        roles[index] += "role" in choice["delta"]
        texts[index] += choice["delta"].get("content", "")
        ends[index] += choice["finish_reason"] is not None
    assert set(roles.values()) == set(ends.values()) == {1}
    assert list(texts.values()) == [choice["message"]["content"] for choice in chat(server, n=3, seed=1)["choices"]]


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_usage_is_not_streamed_unless_asked_for(server: Running, options: Any) -> None:
    assert all("usage" not in part for part in chunks(server, stream_options=options))


def test_usage_asked_for_is_one_more_chunk_at_the_end(server: Running) -> None:
    *parts, last = chunks(server, stream_options={"include_usage": True}, n=2)
    assert all(part["usage"] is None and part["choices"] for part in parts)
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 20,
        "completion_tokens": 28,
        "total_tokens": 48,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_logprob_bytes_joined_are_the_bytes_of_the_text(server: Running) -> None:
    content = chat(server, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    raw = b"".join(bytes(entry["bytes"]) for entry in content)
    assert raw.decode().removesuffix("<end>") == "Good 👋 day"
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)
    streamed = [
        entry
        for part in chunks(server, logprobs=True, top_logprobs=2)
        for choice in part["choices"]
        for entry in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == content


def test_logprobs_without_top_ones_have_an_empty_list(server: Running) -> None:
    content = chat(server, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert all(entry["top_logprobs"] == [] for entry in content)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 5}, 5),
        ({"max_tokens": 9, "max_completion_tokens": 5}, 5),
        ({"max_tokens": 3, "max_completion_tokens": 5}, 5),
        ({}, 12),
        ({"max_tokens": None}, 12),
    ],
)
def test_the_newer_limit_wins_and_none_is_up_to_the_context(limits: dict[str, Any], expected: int) -> None:
    with serving(scripted("x" * 100, max_model_len=32)) as server:
        answer = chat(server, **limits)
    assert answer["usage"]["completion_tokens"] == expected
    assert answer["choices"][0]["finish_reason"] == "length"


def test_token_ids_come_back_when_asked_for(server: Running) -> None:
    answer = chat(server, return_token_ids=True)
    assert answer["prompt_token_ids"] == list(b"user: Hi\nassistant: ")
    assert answer["choices"][0]["token_ids"] == [*"Good 👋 day".encode(), EOS_ID]
    parts = chunks(server, return_token_ids=True)
    assert parts[0]["prompt_token_ids"] == answer["prompt_token_ids"]
    ids = [i for part in parts for choice in part["choices"] for i in choice.get("token_ids", [])]
    assert ids == answer["choices"][0]["token_ids"]


def test_content_may_be_text_parts(server: Running) -> None:
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    assert chat(server, messages=[{"role": "user", "content": parts}])["usage"]["prompt_tokens"] == 20


def test_the_generation_prompt_can_be_left_out() -> None:
    engine = scripted()
    with serving(engine) as server:
        chat(server, add_generation_prompt=False)
    assert bytes(engine.requests[0].prompt_ids) == b"user: Hi\n"


@pytest.mark.parametrize("add", [None, False])
def test_the_last_message_can_be_continued(add: bool | None) -> None:
    begun = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Good"}]
    engine = scripted(" day")
    with serving(engine) as server:
        answer = chat(server, messages=begun, continue_final_message=True, add_generation_prompt=add)
    assert bytes(engine.requests[0].prompt_ids) == b"user: Hi\nassistant: Good"
    assert answer["choices"][0]["message"]["content"] == " day", "what the client has sent isn't repeated"


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_ends_in_one_way(server: Running, stream: bool) -> None:
    both = {"add_generation_prompt": True, "continue_final_message": True}
    answer = server.post("chat/completions", {"messages": HI, "stream": stream, **both})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "continue_final_message")
    assert "can't both be true; leave add_generation_prompt out" in answer.json()["error"]["message"]
    assert chat(server, continue_final_message=False, add_generation_prompt=True)["choices"]


@pytest.mark.parametrize(
    ("part", "modality"),
    [
        ({"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}, "image"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "audio"),
        ({"type": "video_url", "video_url": {"url": "http://127.0.0.1/x.mp4"}}, "video"),
    ],
)
def test_media_for_a_text_model_is_refused_by_name(server: Running, part: dict[str, Any], modality: str) -> None:
    answer = server.post("chat/completions", {"messages": [{"role": "user", "content": [part]}]})
    assert answer.status_code == 400
    assert modality in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "messages[0].content[0].type"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "required"),
        ("functions", [{"name": "f"}]),
        ("response_format", {"type": "json_object"}),
        ("response_format", "json"),
        ("audio", {"voice": "x"}),
        ("modalities", ["text", "audio"]),
        ("use_beam_search", True),
        ("echo", True),
        ("reasoning_effort", "high"),
        ("prediction", {}),
    ],
)
def test_what_is_not_built_yet_is_refused_by_name(server: Running, field: str, value: Any, stream: bool) -> None:
    answer = server.post("chat/completions", {"messages": HI, field: value, "stream": stream})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field


def test_fields_that_ask_for_nothing_are_accepted(server: Running) -> None:
    chat(
        server, tools=None, tool_choice="none", functions=[], response_format={"type": "text"}, logit_bias={},
        presence_penalty=0, frequency_penalty=0.0, parallel_tool_calls=True, user="u", metadata={"a": "b"},
        store=False, service_tier="auto", stop=None, n=1,
    )  # fmt: skip


def test_the_official_client_gets_whole_answers_and_streams(server: Running) -> None:
    with server.openai() as client:
        answer = client.chat.completions.create(model="demo", messages=HI, seed=3, logprobs=True, n=2)
        assert [choice.message.content for choice in answer.choices] == ["Good 👋 day"] * 2
        assert answer.choices[0].logprobs.content[0].token == "G"
        stream = client.chat.completions.create(
            model="demo", messages=HI, stream=True, stop=" day", stream_options={"include_usage": True}
        )
        parts = list(stream)
        assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == "Good 👋"
        assert parts[-1].usage.completion_tokens == 13
        whole = client.completions.create(model="demo", prompt="x", max_tokens=50)
        assert whole.choices[0].text == "Good 👋 day"
        assert [model.id for model in client.models.list()] == ["demo"]


def test_the_official_client_raises_when_a_stream_breaks() -> None:
    failure = ScriptedFailure(after_tokens=2, message="boom")
    with serving(scripted(failure=failure)) as server, server.openai() as client:
        received: list[Any] = []
        stream = client.chat.completions.create(model="demo", messages=HI, stream=True)
        with pytest.raises(openai.APIError, match="boom"):
            received.extend(part for part in stream)
        assert received
        assert all(choice.finish_reason is None for part in received for choice in part.choices)


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "bos_token", "eos_token"])
def test_template_variables_of_the_server_are_not_the_clients(server: Running, name: str) -> None:
    message = {"role": "user", "content": "a"}
    answer = server.post("chat/completions", {"messages": [message], "chat_template_kwargs": {"x": 1, name: "y"}})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == f"chat_template_kwargs.{name}"


def test_messages_that_are_too_long_are_named(server: Running) -> None:
    answer = server.post("chat/completions", {"messages": [{"role": "user", "content": "a" * 3000}]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages"


@pytest.mark.parametrize("text", ["a👋b", "你好，世界", "👨‍👩‍👧 🇩🇪", "é\u0301 ไทย", "مرحبا"])
def test_characters_of_several_tokens_come_whole_and_one_after_the_other(text: str) -> None:
    # A token is a byte here, so that no character beyond ASCII comes in one token.
    with serving(scripted(text)) as running:
        deltas = [part["choices"][0]["delta"].get("content", "") for part in chunks(running)]
        assert [delta for delta in deltas if delta] == list(text)
        assert chat(running)["choices"][0]["message"]["content"] == text


def test_an_output_that_ends_within_a_character_says_so_at_its_end_only() -> None:
    cut = [*"ok 👋".encode()[:-1], EOS_ID]
    with serving(scripted(lambda request: cut)) as running:
        deltas = [part["choices"][0]["delta"].get("content", "") for part in chunks(running)]
        assert "".join(deltas) == "ok \ufffd"
        assert chat(running)["choices"][0]["message"]["content"] == "ok \ufffd"
