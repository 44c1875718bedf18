"""Options that both generating routes share, and the completions' echo, over a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from corefw.messages.outputs import PositionLogprobs
from tests.server.serving import Running, events, scripted, serving

ROUTES = ("completions", "chat/completions")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(scripted("one STOP two")) as running:
        yield running


def _body(route: str, stream: bool, **fields: Any) -> dict[str, Any]:
    prompt = {"prompt": "Once"} if route == "completions" else {"messages": [{"role": "user", "content": "Hi"}]}
    return {**prompt, "max_tokens": 64, "stream": stream, **fields}


def _chunks(server: Running, route: str, **fields: Any) -> list[dict[str, Any]]:
    answer = server.post(route, _body(route, True, **fields))
    assert answer.status_code == 200, answer.text
    *data, done = events(answer)
    assert done == "[DONE]"
    return [choice for item in data for choice in json.loads(item)["choices"]]


def _result(server: Running, route: str, stream: bool, **fields: Any) -> tuple[str, Any, Any]:
    """Text, finish reason and stop reason."""
    if stream:
        choices = _chunks(server, route, **fields)
        texts = [choice["text"] if route == "completions" else choice["delta"].get("content", "") for choice in choices]
        return "".join(texts), choices[-1]["finish_reason"], choices[-1]["stop_reason"]
    answer = server.post(route, _body(route, False, **fields))
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    text = choice["text"] if route == "completions" else choice["message"]["content"]
    return text, choice["finish_reason"], choice["stop_reason"]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("include", "text"), [(False, "one "), (True, "one STOP"), (None, "one ")])
def test_a_stop_string_is_part_of_the_output_only_where_asked_for(
    server: Running, route: str, stream: bool, include: bool | None, text: str
) -> None:
    result = _result(server, route, stream, stop=["STOP"], include_stop_str_in_output=include)
    assert result == (text, "stop", "STOP")


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("include", "text"), [(False, "one "), (True, "one S")])
def test_so_is_a_stop_token(server: Running, route: str, stream: bool, include: bool, text: str) -> None:
    result = _result(server, route, stream, stop_token_ids=[ord("S")], include_stop_str_in_output=include)
    assert result == (text, "stop", ord("S"))


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_an_output_that_repeats_itself_ends_with_length(route: str, stream: bool) -> None:
    with serving(scripted("go abababab")) as server:
        detection = {"max_pattern_size": 4, "min_count": 3}
        result = _result(server, route, stream, repetition_detection=detection)
    assert result == ("go ababab", "length", "repetition_detected")


@pytest.mark.parametrize("route", ROUTES)
def test_prompt_logprobs_are_by_token_id_and_the_first_is_null(server: Running, route: str) -> None:
    answer = server.post(route, _body(route, False, prompt_logprobs=2, return_token_ids=True)).json()
    home = answer["choices"][0] if route == "completions" else answer
    first, *others = home["prompt_logprobs"]
    assert first is None
    for token_id, entry in zip(home["prompt_token_ids"][1:], others, strict=True):
        assert entry[str(token_id)] == {"logprob": -0.5, "rank": 1, "decoded_token": chr(token_id)}
        assert entry[str(token_id + 1)]["rank"] == 2


@pytest.mark.parametrize("route", ROUTES)
def test_a_prompt_is_cut_to_its_last_tokens(server: Running, route: str) -> None:
    answer = server.post(route, _body(route, False, truncate_prompt_tokens=3, return_token_ids=True)).json()
    home = answer["choices"][0] if route == "completions" else answer
    assert len(home["prompt_token_ids"]) == 3
    assert answer["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["Önce ", [*"Önce ".encode()]])
def test_an_echo_is_the_prompt_and_its_entries_before_the_output(server: Running, prompt: Any, stream: bool) -> None:
    fields = {"prompt": prompt, "echo": True, "logprobs": 2, "n": 2}
    if stream:
        choices = [c for c in _chunks(server, "completions", **fields) if c["index"] == 1]
    else:
        answer = server.post("completions", _body("completions", False, **fields)).json()
        choices = answer["choices"][1:]
    text = "".join(choice["text"] for choice in choices)
    lists = {
        name: [item for choice in choices if choice["logprobs"] for item in choice["logprobs"][name]]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    }
    assert text == "Önce one STOP two"
    num_tokens = len(text.encode()) + 1
    assert {name: len(items) for name, items in lists.items()} == dict.fromkeys(lists, num_tokens)
    assert (lists["token_logprobs"][0], lists["top_logprobs"][0]) == (None, None)
    assert all(value == -0.5 for value in lists["token_logprobs"][1:])
    assert all(token in top for token, top in zip(lists["tokens"][1:], lists["top_logprobs"][1:], strict=True))
    # The second byte of "Ö" completes it, and the end token at the end isn't part of the text.
    assert lists["text_offset"] == [0, 0, *range(1, len(text) + 1)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_no_tokens_with_an_echo_is_the_prompt_alone(server: Running, stream: bool, logprobs: int | None) -> None:
    result = _result(server, "completions", stream, echo=True, max_tokens=0, logprobs=logprobs)
    assert result == ("Once", "length", None)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES)
def test_no_tokens_without_an_echo_is_refused(server: Running, route: str, stream: bool) -> None:
    answer = server.post(route, _body(route, stream, max_tokens=0))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")
    assert _result(server, route, stream)[1] == "stop"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("value", [float("-inf"), float("nan")])
def test_log_probabilities_that_json_has_no_number_for_are_a_floor(route: str, stream: bool, value: float) -> None:
    def logprobs(token_id: int, num_top: int) -> PositionLogprobs:
        return PositionLogprobs([token_id] * (num_top + 1), [value] * (num_top + 1), 1)

    asked: dict[str, Any] = (
        {"logprobs": 2, "echo": True} if route == "completions" else {"logprobs": True, "top_logprobs": 2}
    )
    with serving(scripted("x", logprobs=logprobs)) as server:
        answer = server.post(route, _body(route, stream, **asked))
    assert answer.status_code == 200
    assert "-9999.0" in answer.text
    assert "NaN" not in answer.text
    assert "Infinity" not in answer.text
