"""Nothing that a client sends is silently ignored."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from corefw.errors import RequestError
from corefw.server.protocol.chat import CHAT_REQUEST
from corefw.server.protocol.completions import COMPLETION_REQUEST
from corefw.server.protocol.fields import RequestShape

SHAPES = pytest.mark.parametrize("shape", [COMPLETION_REQUEST, CHAT_REQUEST], ids=["completions", "chat"])


def refusal(shape: RequestShape[Any], data: dict[str, Any]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        shape.decode(data)
    assert caught.value.status == 400
    return caught.value


@SHAPES
@pytest.mark.parametrize(
    ("typo", "meant"),
    [("max_token", "max_tokens"), ("temprature", "temperature"), ("topp", "top_p")],
)
def test_a_misspelt_field_is_refused_with_the_nearest_name(shape: RequestShape[Any], typo: str, meant: str) -> None:
    error = refusal(shape, {typo: 1})
    assert error.param == typo
    assert error.code == "unknown_parameter"
    assert meant in error.message


@SHAPES
@pytest.mark.parametrize("name", ["x" * 5000, "<script>", "a\nb", "\U0001f600", ""])
def test_a_strange_field_name_is_not_repeated(shape: RequestShape[Any], name: str) -> None:
    error = refusal(shape, {name: 1})
    assert len(error.message) < 400
    assert not name or name not in error.message
    assert error.param == "(unprintable)"


@SHAPES
@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("max_tokens", "5", "max_tokens must be a whole number or null, got a string"),
        ("max_tokens", 5.0, "max_tokens must be a whole number or null, got a number"),
        ("max_tokens", True, "max_tokens must be a whole number or null, got a boolean"),
        ("temperature", "hot", "temperature must be a number or null, got a string"),
        ("temperature", False, "temperature must be a number or null, got a boolean"),
        ("temperature", 10**400, "temperature has a value out of range or of the wrong type"),
        ("stream", 1, "stream must be a boolean or null, got a whole number"),
        ("stream", "true", "stream must be a boolean or null, got a string"),
        ("stop_token_ids", [1, "x"], "stop_token_ids[1] must be a whole number, got a string"),
        ("stop_token_ids", 5, "stop_token_ids must be a list or null, got a whole number"),
        ("stream_options", [], "stream_options must be an object or null, got a list"),
        ("stream_options", {"include_usage": 1}, "stream_options.include_usage must be a boolean or null"),
        ("stream_options", {"usage": True}, "unknown field stream_options.usage"),
        ("model", 5, "model must be a string or null, got a whole number"),
    ],
)
def test_a_wrong_type_is_refused_with_path_and_kinds(
    shape: RequestShape[Any], field: str, value: Any, words: str
) -> None:
    error = refusal(shape, {field: value})
    assert words in error.message
    assert error.param
    assert error.param.startswith(field)


@SHAPES
def test_null_is_silence_in_every_field(shape: RequestShape[Any]) -> None:
    names = [*shape.struct.__struct_fields__, *shape.neutral, *shape.ignored]
    assert shape.decode(dict.fromkeys(names)) == shape.struct()


@SHAPES
def test_unsupported_fields_pass_only_with_values_that_ask_for_nothing(shape: RequestShape[Any]) -> None:
    for name, accepted in shape.neutral.items():
        for value in accepted:
            shape.decode({name: value})
        error = refusal(shape, {name: {"some": "thing"}})
        assert error.param == name
        assert error.code == "unsupported_parameter"


@SHAPES
def test_true_is_not_one(shape: RequestShape[Any]) -> None:
    assert refusal(shape, {"repetition_penalty": True}).param == "repetition_penalty"
    assert refusal(shape, {"presence_penalty": False}).param == "presence_penalty"


@SHAPES
def test_no_field_is_both_understood_and_unsupported(shape: RequestShape[Any]) -> None:
    understood = set(shape.struct.__struct_fields__)
    assert not understood & (set(shape.neutral) | shape.ignored)
    assert not set(shape.neutral) & shape.ignored


class _Ranged(msgspec.Struct):
    count: Annotated[int, msgspec.Meta(ge=1)] | None = None
    words: Annotated[list[Annotated[str, msgspec.Meta(min_length=2)]], msgspec.Meta(max_length=2)] = []


@pytest.mark.parametrize(
    ("data", "param", "message"),
    [
        ({"count": 0}, "count", "count must be a whole number >= 1"),
        ({"words": ["ab", "c"]}, "words[1]", "words[1] must be a string of length >= 2"),
        ({"words": ["ab"] * 3}, "words", "words must be a list of length <= 2"),
        ({"count": "1"}, "count", "count must be a whole number or null, got a string"),
        ({"cont": 1}, "cont", "unknown field cont; did you mean count?"),
    ],
)
def test_a_structs_own_ranges_are_told_by_path(data: dict[str, Any], param: str, message: str) -> None:
    error = refusal(RequestShape(struct=_Ranged), data)
    assert (error.param, error.message) == (param, message)
