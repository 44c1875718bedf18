"""Steering fields: what is accepted and what they become."""

from __future__ import annotations

from typing import Any

import pytest

from corefw.config.engine_config import ServerConfig
from corefw.errors import ConfigError, RequestError
from corefw.frontend.sampling_defaults import SamplingDefaults
from corefw.messages.sampling import RepetitionDetection, SamplingParams
from corefw.server.protocol.chat import CHAT_REQUEST
from corefw.server.protocol.completions import COMPLETION_REQUEST

LIMITS = ServerConfig(max_n=128, max_logprobs=20)
VOCAB = 1000


def completion(**fields: Any) -> SamplingParams:
    return COMPLETION_REQUEST.decode(fields).to_sampling_params(SamplingDefaults(), LIMITS, VOCAB)


def chat(**fields: Any) -> SamplingParams:
    return CHAT_REQUEST.decode(fields).to_sampling_params(SamplingDefaults(), LIMITS, VOCAB)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0), ("n", -1), ("n", 129), ("n", 5_000_000), ("n", 2**63), ("n", 2**100),
        ("temperature", -1), ("temperature", 1e308), ("temperature", 101),
        ("top_p", 0), ("top_p", -1), ("top_p", 1.01), ("top_p", 1e308),
        ("top_k", -2), ("top_k", 2**63), ("top_k", 2**100),
        ("min_p", -0.1), ("min_p", 1.1),
        ("seed", 2**63), ("seed", -(2**63) - 1), ("seed", 2**100),
        ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 2**63), ("max_tokens", 2**100),
        ("min_tokens", -1), ("min_tokens", 2**100), ("min_tokens", 17),
        ("stop", ""), ("stop", [""]), ("stop", [1]), ("stop", {}), ("stop", 5), ("stop", True), ("stop", [None]),
        ("stop", ["x"] * 65), ("stop", "x" * 1025),
        ("stop_token_ids", [-1]), ("stop_token_ids", [1000]), ("stop_token_ids", [2**63]),
        ("stop_token_ids", [1] * 1025),
        ("priority", 2**31), ("priority", -(2**100)),
        ("cache_salt", ""), ("cache_salt", "x" * 257), ("request_id", ""), ("request_id", "x" * 257),
        ("stream_options", {"include_usage": True}),
        ("logprobs", 21), ("logprobs", VOCAB + 1), ("logprobs", 10**9), ("logprobs", -1), ("logprobs", True),
        ("prompt_logprobs", 21), ("prompt_logprobs", -1), ("prompt_logprobs", 10**9),
        ("repetition_penalty", 0), ("repetition_penalty", -1), ("repetition_penalty", 1e308),
        ("presence_penalty", 2.5), ("frequency_penalty", -2.5), ("frequency_penalty", 1e308),
        ("logit_bias", {"999999": 5}), ("logit_bias", {"-1": 5}), ("logit_bias", {"abc": 1}), ("logit_bias", [1]),
        ("logit_bias", {"5": 1000}), ("logit_bias", {"5": None}), ("logit_bias", {"5": True}), ("logit_bias", {"": 1}),
        ("logit_bias", {str(i): 1 for i in range(400)}), ("logit_bias", {"9" * 5000: 1}), ("logit_bias", "x"),
        ("allowed_token_ids", []), ("allowed_token_ids", [1000]), ("allowed_token_ids", [-1]),
        ("bad_words", [""]), ("bad_words", ["x"] * 257), ("bad_words", ["x" * 1025]), ("bad_words", ["\ud800"]),
        ("truncate_prompt_tokens", 0), ("truncate_prompt_tokens", -2), ("truncate_prompt_tokens", 2**63),
        ("repetition_detection", {"max_pattern_size": 0}), ("repetition_detection", {"max_pattern_size": 10**9}),
        ("repetition_detection", {"max_pattern_size": 5, "min_count": 1}),
        ("repetition_detection", {"max_pattern_size": 5, "x": 1}), ("repetition_detection", {}),
        ("vllm_xargs", {"a": {}}), ("vllm_xargs", {"a": [[1]]}), ("vllm_xargs", {str(i): 1 for i in range(65)}),
        ("vllm_xargs", {"a": 2**64}), ("vllm_xargs", {"a": None}),
        ("best_of", 2), ("best_of", 5_000_000), ("best_of", 0),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        completion(**{"max_tokens": 16, field: value})
    assert caught.value.param
    assert caught.value.param.startswith(field)
    assert caught.value.status == 400


@pytest.mark.parametrize("value", [21, VOCAB + 1, 10**9, -1])
def test_top_logprobs_beyond_the_cap_are_refused(value: int) -> None:
    with pytest.raises(RequestError, match="top_logprobs must be in"):
        chat(logprobs=True, top_logprobs=value)


def test_top_logprobs_without_logprobs_are_refused() -> None:
    with pytest.raises(RequestError, match="logprobs: true"):
        chat(top_logprobs=3)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, None), ({"logprobs": False}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 20}, 20)],
)
def test_chat_logprobs_become_a_number(fields: dict[str, Any], expected: int | None) -> None:
    assert chat(**fields).logprobs == expected


def test_chat_takes_as_many_logprobs_as_the_server_says() -> None:
    limits = ServerConfig(max_logprobs=30)
    request = CHAT_REQUEST.decode({"logprobs": True, "top_logprobs": 30})
    assert request.to_sampling_params(SamplingDefaults(), limits, VOCAB).logprobs == 30
    with pytest.raises(RequestError, match=r"top_logprobs .*20"):
        request.to_sampling_params(SamplingDefaults(), LIMITS, VOCAB)


@pytest.mark.parametrize(("given", "expected"), [(-1, 0), (0, 0), (7, 7), (None, 0)])
def test_both_ways_to_switch_top_k_off_are_one(given: int | None, expected: int) -> None:
    assert completion(top_k=given).top_k == expected


@pytest.mark.parametrize(("given", "expected"), [(None, ()), ("a", ("a",)), ([], ()), (["a", "b"], ("a", "b"))])
def test_stop_is_a_text_or_a_list(given: Any, expected: tuple[str, ...]) -> None:
    assert completion(stop=given).stop == expected


def test_best_of_n_is_n() -> None:
    assert completion(n=2, best_of=2).n == 2


def test_a_zero_from_the_client_beats_the_models_default() -> None:
    defaults = SamplingDefaults.from_generation_config({"temperature": 0.6, "top_p": 0.9, "top_k": 50})
    params = COMPLETION_REQUEST.decode({"temperature": 0, "top_k": 0}).to_sampling_params(defaults, LIMITS, VOCAB)
    assert (params.temperature, params.top_k, params.top_p) == (0, 0, 0.9)


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": "hot"},
        {"temperature": float("nan")},
        {"top_p": 7},
        {"top_k": [1]},
        {"top_k": float("inf")},
        {"top_k": float("nan")},
        {"top_k": 1.5},
        {"top_k": -2},
        {"top_k": 2**63},
        {"top_k": 10**400},
        {"min_p": True},
    ],
)
def test_unusable_defaults_of_a_model_stop_the_start(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"generation_config: {next(iter(values))} must be "):
        SamplingDefaults.from_generation_config(values)


def test_defaults_of_a_model_that_say_nothing_change_nothing() -> None:
    assert SamplingDefaults.from_generation_config({"temperature": None, "eos_token_id": [1, 2]}) == SamplingDefaults()


def test_every_field_reaches_the_parameters() -> None:
    detection = {"max_pattern_size": 9, "min_count": 3}
    fields = {
        "repetition_penalty": 1.1, "presence_penalty": -1, "frequency_penalty": 2, "allowed_token_ids": [3, 4],
        "bad_words": ["x y"], "detokenize": False, "spaces_between_special_tokens": False, "prompt_logprobs": 4,
        "truncate_prompt_tokens": 8, "repetition_detection": detection, "logit_bias": {"7": -100, "007": 3, "8": 2.5},
        "vllm_xargs": {"a": [1, "b", 2.5, True]},
    }  # fmt: skip
    for params in (completion(**fields), chat(**fields)):
        assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.1, -1, 2)
        assert (params.allowed_token_ids, params.bad_words, params.logit_bias) == ((3, 4), ("x y",), {7: 3.0, 8: 2.5})
        assert (params.detokenize, params.spaces_between_special_tokens) == (False, False)
        assert (params.prompt_logprobs, params.truncate_prompt_tokens) == (4, 8)
        assert params.repetition_detection == RepetitionDetection(**detection)
        assert params.extra_args == {"a": [1, "b", 2.5, True]}


def test_all_logprobs_need_a_server_without_a_limit() -> None:
    unlimited = ServerConfig(max_logprobs=-1)

    def params(shape: Any, **fields: Any) -> SamplingParams:
        return shape.decode(fields).to_sampling_params(SamplingDefaults(), unlimited, VOCAB)

    assert params(COMPLETION_REQUEST, logprobs=-1, prompt_logprobs=-1).logprobs == -1
    assert params(COMPLETION_REQUEST, logprobs=500).logprobs == 500
    assert params(CHAT_REQUEST, logprobs=True, top_logprobs=-1).logprobs == -1
    with pytest.raises(RequestError, match="logprobs"):
        params(COMPLETION_REQUEST, logprobs=-2)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"echo": True}, None),
        ({"echo": True, "logprobs": 3}, 3),
        ({"echo": True, "logprobs": 3, "prompt_logprobs": 5}, 5),
        ({"echo": False, "logprobs": 3}, None),
        ({"echo": True, "max_tokens": 0}, 0),
        ({"echo": True, "max_tokens": 0, "logprobs": 2}, 2),
    ],
)
def test_an_echo_asks_for_what_it_needs(fields: dict[str, Any], expected: int | None) -> None:
    assert completion(**fields).prompt_logprobs == expected


def test_prompt_logprobs_arent_streamed() -> None:
    with pytest.raises(RequestError, match="stream"):
        completion(prompt_logprobs=1, stream=True)
