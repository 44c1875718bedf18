"""``/v1/completions`` over a real socket."""

from __future__ import annotations

import dataclasses
import json
import resource
from collections.abc import Iterator
from typing import Any

import pytest

from corefw.testing.scripted_engine import ScriptedFailure
from tests.server.serving import EOS_ID, Running, engine_config, events, scripted, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(scripted("Hello, wörld!", num_cached_tokens=3)) as running:
        yield running


def complete(server: Running, **body: Any) -> dict[str, Any]:
    answer = server.post("completions", {"prompt": "Once", "max_tokens": 64, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def chunks(server: Running, **body: Any) -> list[dict[str, Any]]:
    answer = server.post("completions", {"prompt": "Once", "max_tokens": 64, "stream": True, **body})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    *data, done = events(answer)
    assert done == "[DONE]"
    return [json.loads(item) for item in data]


def test_the_answer_has_the_shape_of_the_api(server: Running) -> None:
    answer = complete(server, model="demo")
    assert answer.pop("id").startswith("cmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "model": "demo",
        "object": "text_completion",
        "choices": [
            {"index": 0, "text": "Hello, wörld!", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
        ],
        "usage": {
            "prompt_tokens": 4,
            "completion_tokens": 15,
            "total_tokens": 19,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
    }


def test_a_stream_joined_is_the_whole_answer(server: Running) -> None:
    parts = chunks(server)
    assert "".join(c["text"] for part in parts for c in part["choices"]) == "Hello, wörld!"
    assert [c["finish_reason"] for part in parts for c in part["choices"]][-1] == "stop"
    assert sum(c["finish_reason"] is not None for part in parts for c in part["choices"]) == 1
    assert len({(part["id"], part["created"], part["model"]) for part in parts}) == 1


def test_sixteen_tokens_are_the_limit_of_a_silent_request() -> None:
    with serving(scripted("x" * 100)) as server:
        answer = server.post("completions", {"prompt": "Once"}).json()
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"continuous_usage_stats": True}])
def test_usage_is_not_streamed_unless_asked_for(server: Running, options: Any) -> None:
    assert all("usage" not in part for part in chunks(server, stream_options=options))


def test_usage_asked_for_is_one_more_chunk_at_the_end(server: Running) -> None:
    *parts, last = chunks(server, stream_options={"include_usage": True})
    assert all(part["usage"] is None and part["choices"] for part in parts)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 15


def test_continuous_usage_counts_up_in_every_chunk(server: Running) -> None:
    parts = chunks(server, stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [part["usage"]["completion_tokens"] for part in parts]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == 15


def test_choices_of_several_prompts_with_n_are_in_prompt_order() -> None:
    with serving(scripted(lambda request: [*request.prompt_ids, EOS_ID])) as server:
        whole = complete(server, prompt=["one", "two"], n=2)
        parts = chunks(server, prompt=["one", "two"], n=2)
    assert [(c["index"], c["text"]) for c in whole["choices"]] == [(0, "one"), (1, "one"), (2, "two"), (3, "two")]
    assert whole["usage"]["prompt_tokens"] == 6
    texts = dict.fromkeys(range(4), "")
    ends = []
    for choice in (c for part in parts for c in part["choices"]):
        texts[choice["index"]] += choice["text"]
        ends += [choice["index"]] if choice["finish_reason"] else []
    assert texts == {0: "one", 1: "one", 2: "two", 3: "two"}
    assert sorted(ends) == [0, 1, 2, 3]


@pytest.mark.parametrize("prompt", ["ab", ["ab"], [97, 98], [[97, 98]]])
def test_every_shape_of_a_prompt_reaches_the_engine(prompt: Any) -> None:
    engine = scripted()
    with serving(engine) as server:
        complete(server, prompt=prompt)
    assert [request.prompt_ids for request in engine.requests] == [[97, 98]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([""], "prompt[0]"),
        ([], "prompt"),
        ([[]], "prompt[0]"),
        (["fine", ""], "prompt[1]"),
        (None, "prompt"),
        (7, "prompt"),
        ({}, "prompt"),
        ([None], "prompt[0]"),
        ([-1], "prompt[0]"),
        ([257], "prompt[0]"),
        ([2**63], "prompt[0]"),
        ([2**70], "prompt[0]"),
        ([1, True], "prompt[1]"),
        ([1.0], "prompt[0]"),
        ([[1, 2], [3, "x"]], "prompt[1][1]"),
        ([[1, 2], [3, 300]], "prompt[1][1]"),
        (["text", [1]], "prompt[1]"),
        ([[1], "text"], "prompt[1]"),
    ],
)
def test_a_prompt_that_is_none_is_refused_with_its_path(server: Running, prompt: Any, param: str, stream: bool) -> None:
    answer = server.post("completions", {"prompt": prompt, "stream": stream})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert param in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a_prompt_around_the_context_length_is_served_or_refused(extra: int, stream: bool) -> None:
    with serving(scripted("abc", max_model_len=32)) as server:
        answer = server.post("completions", {"prompt": [65] * (32 + extra), "max_tokens": 1, "stream": stream})
        if extra < 0:
            assert answer.status_code == 200
        else:
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "context_length_exceeded"
            assert "32" in answer.json()["error"]["message"]
        assert server.post("completions", {"prompt": "a", "max_tokens": 1}).status_code == 200


def test_prompt_and_limit_beyond_the_context_are_refused_with_all_three_numbers() -> None:
    with serving(scripted(max_model_len=32)) as server:
        error = server.post("completions", {"prompt": [65] * 8, "max_tokens": 29}).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert all(number in error["message"] for number in ("32", "8", "29"))


def test_an_unfit_prompt_among_others_starts_none_of_them() -> None:
    engine = scripted(max_model_len=32)
    with serving(engine) as server:
        assert server.post("completions", {"prompt": [[65], [65] * 40]}).status_code == 400
        assert engine.requests == []


def test_a_stop_string_ends_the_text_and_is_named(server: Running) -> None:
    choice = complete(server, stop=["rld", ", w"])["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("Hello", "stop", ", w")
    kept = complete(server, stop=", w", include_stop_str_in_output=True)["choices"][0]
    assert kept["text"] == "Hello, w"
    streamed = chunks(server, stop=", w")
    assert "".join(c["text"] for part in streamed for c in part["choices"]) == "Hello"


def test_a_stop_token_ends_the_text_and_is_named(server: Running) -> None:
    choice = complete(server, stop_token_ids=[ord(",")])["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("Hello", "stop", ord(","))


def test_token_ids_come_back_when_asked_for(server: Running) -> None:
    choice = complete(server, return_token_ids=True)["choices"][0]
    assert choice["prompt_token_ids"] == list(b"Once")
    assert choice["token_ids"] == [*"Hello, wörld!".encode(), EOS_ID]
    parts = [c for part in chunks(server, return_token_ids=True) for c in part["choices"]]
    assert [i for part in parts for i in part["token_ids"]] == choice["token_ids"]
    assert [part.get("prompt_token_ids") for part in parts] == [list(b"Once")] + [None] * (len(parts) - 1)


def test_logprobs_are_parallel_lists_with_offsets_into_the_text(server: Running) -> None:
    whole = complete(server, logprobs=2)["choices"][0]["logprobs"]
    assert whole["tokens"][:2] == ["H", "e"]
    assert set(whole["top_logprobs"][0]) == {"H", "I"}
    assert {len(entries) for entries in whole.values()} == {15}
    # The two bytes of ö begin where it begins; the token after it begins one character later.
    assert whole["text_offset"][7:12] == [7, 8, 8, 9, 10]
    streamed = [c["logprobs"] for part in chunks(server, logprobs=2) for c in part["choices"] if c["logprobs"]]
    for name, entries in whole.items():
        assert [entry for part in streamed for entry in part[name]] == entries


def test_tokens_of_logprobs_can_be_written_as_ids(server: Running) -> None:
    whole = complete(server, logprobs=1, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]
    assert whole["tokens"][0] == f"token_id:{ord('H')}"


def test_logprobs_that_json_cannot_hold_become_the_floor() -> None:
    from corefw.messages.outputs import PositionLogprobs

    def impossible(token_id: int, num_top: int) -> PositionLogprobs:
        values = [float("-inf"), float("nan"), float("inf"), -20000.0]
        return PositionLogprobs([token_id, 1, 2, 3], values, 1)

    with serving(scripted("a", logprobs=impossible)) as server:
        whole = complete(server, logprobs=3)["choices"][0]["logprobs"]
    assert whole["token_logprobs"][0] == -9999.0
    assert set(whole["top_logprobs"][0].values()) == {-9999.0}


@pytest.mark.parametrize("failure", [ScriptedFailure(after_tokens=3), ScriptedFailure(after_tokens=3, dead=True)])
def test_a_failure_in_the_stream_is_an_error_event_and_no_end(failure: ScriptedFailure) -> None:
    with serving(scripted(failure=failure)) as server:
        answer = server.post("completions", {"prompt": "a", "stream": True})
        data = [json.loads(item) for item in events(answer)]
    assert answer.status_code == 200
    assert all(c["finish_reason"] is None for part in data[:-1] for c in part["choices"])
    assert data[-1]["error"]["type"] == "server_error"


def test_a_failure_before_the_first_token_is_a_plain_error_answer() -> None:
    with serving(scripted(failure=ScriptedFailure(message="boom"))) as server:
        for stream in (False, True):
            answer = server.post("completions", {"prompt": "a", "stream": stream})
            assert answer.status_code == 500
            assert answer.json()["error"]["message"] == "boom"


def test_a_dead_engine_is_told_with_503() -> None:
    with serving(scripted(failure=ScriptedFailure(dead=True))) as server:
        assert server.post("completions", {"prompt": "a"}).status_code == 503
        assert server.post("completions", {"prompt": "a", "stream": True}).status_code == 503


def test_an_unknown_model_is_not_found(server: Running) -> None:
    answer = server.post("completions", {"model": "other", "prompt": "a"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert complete(server)["model"] == "demo"


def test_the_models_own_sampling_values_apply_where_the_request_is_silent() -> None:
    engine = scripted(config=engine_config({"temperature": 0.25, "top_k": 7, "max_length": 99}))
    with serving(engine) as server:
        complete(server)
        complete(server, temperature=0, top_k=-1)
    first, second = (request.params for request in engine.requests)
    assert (first.temperature, first.top_k, first.top_p) == (0.25, 7, 1.0)
    assert (second.temperature, second.top_k) == (0.0, 0)


def test_every_steering_field_reaches_the_engine() -> None:
    config = engine_config()
    config = dataclasses.replace(config, scheduler=dataclasses.replace(config.scheduler, scheduling_policy="other"))
    engine = scripted(config=config)
    body = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 11, "max_tokens": 9, "min_tokens": 2,
        "ignore_eos": True, "stop_token_ids": [5], "priority": -3, "cache_salt": "mine",
    }  # fmt: skip
    with serving(engine) as server:
        complete(server, **body)
    (request,) = engine.requests
    assert {name: getattr(request.params, name) for name in list(body)[:8]} == dict(list(body.items())[:8])
    assert request.params.stop_token_ids == (5,)
    assert (request.priority, request.cache_salt) == (-3, "mine")


def test_too_many_sequences_in_one_request_are_refused() -> None:
    engine = scripted()
    with serving(engine, max_prompts=8, max_n=4) as server:
        assert server.post("completions", {"prompt": ["a"] * 9}).status_code == 400
        assert server.post("completions", {"prompt": ["a"] * 4, "n": 3}).status_code == 400
        assert engine.requests == []
        assert server.post("completions", {"prompt": ["a"] * 4, "n": 2}).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_too_many_sequences_are_refused_before_anything_is_made_for_them(stream: bool) -> None:
    body = {"prompt": ["a" * 200] * 2000, "n": 128, "stream": stream}
    with serving(scripted()) as server:
        assert server.post("completions", {**body, "n": 1, "prompt": [""]}).status_code == 400
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        answer = server.post("completions", body)
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
    assert grown_kib < 16 * 1024


def test_a_prompt_too_long_is_named(server: Running) -> None:
    def param(prompt: Any) -> Any:
        answer = server.post("completions", {"prompt": prompt, "max_tokens": 1})
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        return answer.json()["error"]["param"]

    assert param("a" * 3000) == "prompt"
    assert param(["a", "a" * 3000]) == "prompt[1]"
    assert param([[1], [2], [3] * 3000]) == "prompt[2]"


@pytest.mark.parametrize("priority", [1, -1])
def test_a_priority_that_would_be_ignored_is_refused(server: Running, priority: int) -> None:
    answer = server.post("completions", {"prompt": "a", "priority": priority})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "priority")
    assert "--scheduling-policy" in answer.json()["error"]["message"]
    assert server.post("completions", {"prompt": "a", "priority": 0}).status_code == 200


def test_client_request_ids_name_the_answer_but_never_clash() -> None:
    engine = scripted("abc", delay_s=0.02)
    with serving(engine) as server:
        from concurrent.futures import ThreadPoolExecutor

        headers = {"x-request-id": "same"}
        body = {"prompt": "a", "request_id": "same"}
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda _: server.post("completions", body, headers=headers), range(2)))
    assert [answer.json()["id"] for answer in answers] == ["cmpl-same"] * 2
    assert [answer.headers["x-request-id"] for answer in answers] == ["same"] * 2
    assert len({request.request_id for request in engine.requests}) == 2
