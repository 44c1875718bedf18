"""The messages of a chat."""

from __future__ import annotations

from typing import Any

import pytest

from corefw.errors import RequestError
from corefw.server.protocol.chat_messages import parse_messages


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ("hi", "messages"),
        ({}, "messages"),
        ([], "messages"),
        ([{"role": "user", "content": "x"}] * 4097, "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "wizard", "content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": {}, "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "user", "content": {"type": "text"}}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "hologram"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": ["text"]}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text", "text": "x", "y": 1}]}], "messages[0].content[0].y"),
        ([{"role": "user", "content": "x", "contents": "y"}], "messages[0].contents"),
        ([{"role": "user", "content": "x", "name": 1}], "messages[0].name"),
        (
            [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "tool_calls": [{}]}],
            "messages[1].tool_calls",
        ),
    ],
)
def test_what_is_no_message_is_refused_with_its_path(messages: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_messages(messages)
    assert caught.value.param == param
    assert param in caught.value.message


def test_an_answer_that_comes_back_as_history_is_accepted() -> None:
    message = {
        "role": "assistant", "content": "x", "refusal": None, "annotations": [], "audio": None, "function_call": None,
        "tool_calls": None,
    }  # fmt: skip
    assert parse_messages([message]) == [{"role": "assistant", "content": "x"}]


def test_names_are_kept_for_the_template() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "x"}], "name": "Ann"}
    assert parse_messages([message]) == [message]
