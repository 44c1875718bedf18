from __future__ import annotations

from typing import Any

import pytest

from corefw.errors import RequestError
from corefw.frontend.chat_messages import check_template_ends, template_messages


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("hi", "hi"),
        ("", ""),
        ([{"type": "text", "text": "a"}], "a"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        (["a", {"type": "text", "text": "b"}], "a\nb"),
        ([], ""),
    ],
)
def test_content_becomes_one_text(content: Any, expected: str) -> None:
    assert template_messages([{"role": "user", "content": content}])[0]["content"] == expected


def test_an_assistant_message_may_have_no_content_and_keeps_its_other_keys() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    assert template_messages([message]) == [{**message, "content": ""}]
    assert template_messages([{"role": "assistant"}]) == [{"role": "assistant", "content": ""}]


def test_keys_without_a_value_are_left_out() -> None:
    message = {"role": "user", "content": "a", "name": None, "tool_calls": None}
    assert template_messages([message]) == [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("messages", "param", "words"),
    [
        ([], "messages", "empty"),
        (["hi"], "messages[0]", "object"),
        ([{"content": "hi"}], "messages[0].role", "role"),
        ([{"role": 3, "content": "hi"}], "messages[0].role", "role"),
        ([{"role": "user", "content": "a"}, {"role": "user"}], "messages[1].content", "string or a list"),
        ([{"role": "user", "content": 3}], "messages[0].content", "string or a list"),
        ([{"role": "user", "content": [{"text": "a"}]}], "messages[0].content[0]", "type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text", "text string"),
        ([{"role": "user", "content": ["a", {"type": "image_url"}]}], "messages[0].content[1]", "image input"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content[0]", "audio input"),
        ([{"role": "user", "content": [{"type": "video_url"}]}], "messages[0].content[0]", "video input"),
        ([{"role": "user", "content": [{"type": "smell"}]}], "messages[0].content[0]", "'smell'"),
    ],
)
def test_what_is_malformed_is_refused_by_its_path(messages: Any, param: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as raised:
        template_messages(messages)
    assert raised.value.param == param
    assert raised.value.status == 400


@pytest.mark.parametrize("add_generation_prompt", [None, False, True])
@pytest.mark.parametrize("continue_final_message", [None, False, True])
def test_a_prompt_ends_in_one_way(add_generation_prompt: bool | None, continue_final_message: bool | None) -> None:
    if add_generation_prompt and continue_final_message:
        with pytest.raises(RequestError, match="can't both be true; leave add_generation_prompt out") as raised:
            check_template_ends(add_generation_prompt, continue_final_message)
        assert raised.value.param == "continue_final_message"
    else:
        check_template_ends(add_generation_prompt, continue_final_message)


def test_the_message_never_repeats_unbounded_input() -> None:
    with pytest.raises(RequestError) as raised:
        template_messages([{"role": "user", "content": [{"type": "x" * 100_000}]}])
    assert len(raised.value.message) < 300
