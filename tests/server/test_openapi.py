"""Fragments: what an endpoint says of its routes."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from corefw.interfaces.endpoint import Endpoint
from corefw.server.openapi import Operation, fragment
from corefw.server.protocol.documented import documented, or_null
from corefw.server.protocol.fields import RequestShape


class Inner(msgspec.Struct, kw_only=True):
    """Inner."""

    word: str


class Answer(msgspec.Struct, kw_only=True):
    """An answer."""

    inner: Inner
    count: int = 0
    extra: str | msgspec.UnsetType = msgspec.UNSET


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request."""

    raw: Annotated[Any, documented("Decoded by hand.", anyOf=or_null({"type": "string"}))] = None
    other: Annotated[Any, documented("Decoded by hand, too.", type="string")] = None
    share: Annotated[float | None, documented("A share.", minimum=0, maximum=1)] = None


SHAPE = RequestShape(struct=Asked, neutral={"later": (False,)}, ignored=frozenset({"user"}), needed=("raw", "other"))


def test_an_endpoint_describes_nothing_by_default() -> None:
    class Nothing(Endpoint):
        name = "nothing"
        prefix = ""

        def routes(self) -> list[Any]:
            return []

    assert Nothing().openapi() == {}


def test_an_answer_s_struct_and_all_that_it_holds_become_schemas() -> None:
    made = fragment(Operation(method="POST", path="/a", summary="A", answer=Answer))
    assert set(made["components"]["schemas"]) == {"Answer", "Inner"}
    assert made["components"]["schemas"]["Answer"]["required"] == ["inner", "count"]
    content = made["paths"]["/a"]["post"]["responses"]["200"]["content"]
    assert content == {"application/json": {"schema": {"$ref": "#/components/schemas/Answer"}}}


def test_a_request_s_shape_becomes_a_closed_schema() -> None:
    made = fragment(Operation(method="POST", path="/a", summary="A", request=SHAPE, examples={"One": {"raw": "x"}}))
    schema = made["components"]["schemas"]["Asked"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["raw"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert (schema["properties"]["share"]["minimum"], schema["properties"]["share"]["maximum"]) == (0, 1)
    assert schema["properties"]["later"]["enum"] == [None, False]
    assert "user" in schema["properties"]
    body = made["paths"]["/a"]["post"]["requestBody"]
    assert body["required"] is True
    assert body["content"]["application/json"]["examples"] == {"One": {"value": {"raw": "x"}}}
    assert "400" in made["paths"]["/a"]["post"]["responses"]


def test_one_of_the_needed_fields_must_be_there() -> None:
    schema = fragment(Operation(method="POST", path="/a", summary="A", request=SHAPE))["components"]["schemas"]["Asked"]
    given = {"not": {"type": "null"}}
    assert schema["anyOf"] == [
        {"required": ["raw"], "properties": {"raw": given}},
        {"required": ["other"], "properties": {"other": given}},
    ]
    assert "default" not in schema["properties"]["raw"]


def test_documenting_a_field_changes_nothing_about_decoding() -> None:
    assert SHAPE.decode({"share": 7.5}).share == 7.5


def test_get_brings_head_without_bodies() -> None:
    methods = fragment(Operation(method="GET", path="/a/{id}", summary="A", answer=Answer, parameters={"id": "Which."}))
    methods = methods["paths"]["/a/{id}"]
    assert set(methods) == {"get", "head"}
    assert "content" not in methods["head"]["responses"]["200"]
    assert methods["head"]["parameters"] == methods["get"]["parameters"]
    assert methods["get"]["operationId"] != methods["head"]["operationId"]


def test_a_parameter_in_the_path_has_to_be_described() -> None:
    with pytest.raises(KeyError, match="id"):
        fragment(Operation(method="GET", path="/a/{id}", summary="A"))


def test_a_stream_s_events_are_described_by_their_struct() -> None:
    made = fragment(Operation(method="POST", path="/a", summary="A", answer=Answer, events=Inner))
    content = made["paths"]["/a"]["post"]["responses"]["200"]["content"]
    data = content["text/event-stream"]["schema"]["properties"]["data"]
    assert {"$ref": "#/components/schemas/Inner"} in data["else"]["contentSchema"]["anyOf"]
    assert "Inner" in made["components"]["schemas"]


def test_text_and_nothing_are_answers_too() -> None:
    made = fragment(
        Operation(method="POST", path="/text", summary="T", text_types=("text/plain",)),
        Operation(method="DELETE", path="/gone", summary="G"),
    )
    assert set(made["paths"]["/text"]["post"]["responses"]["200"]["content"]) == {"text/plain"}
    assert "content" not in made["paths"]["/gone"]["delete"]["responses"]["200"]


def test_a_full_server_says_when_to_come_again() -> None:
    made = fragment(Operation(method="POST", path="/a", summary="A", errors={429: "Full."}))
    assert "Retry-After" in made["paths"]["/a"]["post"]["responses"]["429"]["headers"]
