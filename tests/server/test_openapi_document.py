"""The document says what the server does: its routes, its fields and their ranges, its key."""

from __future__ import annotations

import importlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from corefw.errors import PluginError
from corefw.interfaces.endpoint import Endpoint
from corefw.server.openapi import Operation, fragment
from corefw.server.openapi_document import ApiDocument
from corefw.server.protocol.chat import CHAT_REQUEST
from corefw.server.protocol.completions import COMPLETION_REQUEST
from corefw.server.protocol.fields import RequestShape
from corefw.server.protocol.generation_fields import GenerationFields
from tests.server.serving import Running, builtin_endpoints, scripted, serving

METHODS = {"get", "head", "post", "put", "delete", "options", "patch", "trace"}
BASES = {GenerationFields}  # no body by themselves
PROTOCOL = Path(__file__).parents[2] / "corefw/server/protocol"


class Mine(msgspec.Struct, kw_only=True):
    """Mine."""

    mine: int


class Plain(Endpoint):
    """A pack's endpoint."""

    name = "plain"
    prefix = ""

    def __init__(self, path: str = "/plain", answer: type[msgspec.Struct] = Mine) -> None:
        self._path, self._answer = path, answer

    def routes(self) -> Sequence[BaseRoute]:
        async def answer(_: Request) -> Response:
            return Response('{"mine": 1}', media_type="application/json")

        return [Route(self._path, answer, methods=["POST"])]

    def openapi(self) -> Mapping[str, Any]:
        return fragment(Operation(method="POST", path=self._path, summary="Mine", answer=self._answer))


class Silent(Plain):
    """A pack's endpoint that describes nothing."""

    name = "silent"

    def openapi(self) -> Mapping[str, Any]:
        return Endpoint.openapi(self)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(scripted()) as made:
        yield made


@pytest.fixture(scope="module")
def document(running: Running) -> dict[str, Any]:
    answer = running.get("/openapi.json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    return dict(answer.json())


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_the_document_is_valid_openapi(document: dict[str, Any]) -> None:
    assert list(OpenAPIV31SpecValidator(document).iter_errors()) == []


def test_every_route_of_the_built_ins_is_described_and_nothing_else(document: dict[str, Any]) -> None:
    served = {
        (re.sub(r":\w+}", "}", route.path), method.lower())
        for endpoint in builtin_endpoints()
        for route in endpoint.routes()
        if isinstance(route, Route)
        for method in route.methods or ()
    }
    described = {(path, method) for path, method, _ in operations(document)}
    assert len(served) > 15
    assert described == served


def test_the_test_s_endpoints_are_those_that_are_installed() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    installed = project["project"]["entry-points"]["corefw.endpoint_plugins"]
    assert {endpoint.name for endpoint in builtin_endpoints()} == set(installed)


def test_each_operation_has_a_name_of_its_own_a_summary_and_a_success(document: dict[str, Any]) -> None:
    described = [operation for _, _, operation in operations(document)]
    assert len({operation["operationId"] for operation in described}) == len(described)
    assert all(operation["summary"] and operation["tags"] for operation in described)
    assert all("200" in operation["responses"] for operation in described)


def test_every_reference_leads_somewhere_and_no_schema_is_left_over(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    used = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert used == set(document["components"]["schemas"])


@pytest.mark.parametrize("shape", [COMPLETION_REQUEST, CHAT_REQUEST], ids=["completions", "chat"])
def test_every_field_that_a_request_may_have_is_described(document: dict[str, Any], shape: RequestShape[Any]) -> None:
    schema = document["components"]["schemas"][shape.struct.__name__]
    assert set(schema["properties"]) == {*shape.struct.__struct_fields__, *shape.neutral, *shape.ignored}
    assert schema["additionalProperties"] is False
    fields = {name: schema["properties"][name] for name in shape.struct.__struct_fields__}
    assert [name for name, field in fields.items() if not field.get("description")] == []
    # A field that msgspec knows nothing of states its own schema.
    assert [name for name, field in fields.items() if not {"type", "anyOf"} & field.keys()] == []


def test_every_struct_of_the_protocol_is_described_with_all_its_fields(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for struct in _structs(COMPLETION_REQUEST.struct, CHAT_REQUEST.struct):
        assert set(struct.__struct_fields__) <= set(schemas[struct.__name__]["properties"]), struct


def _structs(*roots: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    yield from roots
    for module in sorted(PROTOCOL.glob("*.py")):
        for value in vars(importlib.import_module(f"corefw.server.protocol.{module.stem}")).values():
            is_struct = isinstance(value, type) and issubclass(value, msgspec.Struct)
            if is_struct and value.__module__ == f"corefw.server.protocol.{module.stem}" and value not in BASES:
                yield value


def test_a_field_that_answers_always_have_is_required(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert set(schemas["ErrorDetail"]["required"]) == {"message", "type", "param", "code"}
    assert "token_ids" not in schemas["ChatChoice"]["required"]
    assert {"logprobs", "finish_reason"} <= set(schemas["ChatChoice"]["required"])


def test_a_request_says_which_fields_it_needs(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    needed = [each["required"] for each in schemas["CompletionRequest"]["anyOf"]]
    assert needed == [["prompt"], ["prompt_embeds"], ["data"]]
    assert schemas["ChatRequest"]["required"] == ["messages"]


BODIES: dict[str, dict[str, Any]] = {
    "completions": {"prompt": "Hi", "max_tokens": 2},
    "chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
}
# Fields whose edge is accepted only in company of another, or by another server; each has its own tests.
_COMPANY: dict[str, dict[str, Any]] = {"top_logprobs": {"logprobs": True}, "max_tokens": {"prompt_logprobs": 0}}
_OTHER_SERVERS = {"priority", "prompt_logprobs", "logprobs", "top_logprobs", "min_tokens", "n", "best_of"}


def _edges(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
    """Field, keyword, a value that is just inside and one that is just outside."""
    for name, field in schema["properties"].items():
        step = 1 if {"type": "integer"} in field.get("anyOf", []) else 0.001
        for keyword, sign in (("minimum", 1), ("maximum", -1), ("exclusiveMinimum", 1)):
            if keyword in field:
                edge = field[keyword]
                inside = edge + step * sign if keyword.startswith("exclusive") else edge
                yield name, keyword, inside, edge if keyword.startswith("exclusive") else edge - step * sign


@pytest.mark.parametrize("path", BODIES)
def test_the_ranges_are_those_of_the_checks(running: Running, document: dict[str, Any], path: str) -> None:
    name = document["paths"][f"/v1/{path}"]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    edges = list(_edges(document["components"]["schemas"][name.rsplit("/", 1)[1]]))
    assert len(edges) > 20
    with httpx.Client(base_url=f"{running.url}/v1", timeout=30) as client:
        for field, keyword, inside, outside in edges:
            body = BODIES[path] | _COMPANY.get(field, {})
            refused = client.post(path, json=body | {field: outside})
            assert refused.status_code == 400, (field, keyword, outside)
            assert refused.json()["error"]["param"] == field, refused.text
            accepted = client.post(path, json=body | {field: inside})
            if accepted.status_code != 200 and field not in _OTHER_SERVERS:
                assert accepted.json()["error"]["code"] == "context_length_exceeded", (field, keyword, accepted.text)


@pytest.mark.parametrize("path", BODIES)
def test_the_examples_work(running: Running, document: dict[str, Any], path: str) -> None:
    media = document["paths"][f"/v1/{path}"]["post"]["requestBody"]["content"]["application/json"]
    assert len(media["examples"]) > 1
    for example in media["examples"].values():
        assert running.post(path, example["value"]).status_code == 200


def test_every_operation_has_the_statuses_that_every_route_can_answer(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        assert {"400", "405", "408", "413", "431", "500", "503"} <= set(operation["responses"]), (path, method)
    generating = document["paths"]["/v1/completions"]["post"]["responses"]
    assert {"404", "429"} <= set(generating)
    assert set(generating["200"]["content"]) == {"application/json", "text/event-stream"}


def test_without_a_key_the_document_knows_of_none(document: dict[str, Any]) -> None:
    assert "securitySchemes" not in document["components"]
    assert not any(
        "security" in operation or "401" in operation["responses"] for _, _, operation in operations(document)
    )


def test_with_a_key_it_says_where_the_key_is_needed() -> None:
    with serving(scripted(), api_key=("secret",)) as running:
        assert running.get("/openapi.json").status_code == 401
        document = running.get("/openapi.json", headers={"authorization": "Bearer secret"}).json()
    assert document["components"]["securitySchemes"] == {"api_key": {"type": "http", "scheme": "bearer"}}
    assert "secret" not in json.dumps(document)
    assert list(OpenAPIV31SpecValidator(document).iter_errors()) == []
    for path, _, operation in operations(document):
        is_open = path in ("/health", "/ping")
        assert operation["security"] == ([] if is_open else [{"api_key": []}])
        assert ("401" in operation["responses"]) is not is_open


@pytest.mark.parametrize(("root_path", "url"), [("", "/"), ("/llm", "/llm")])
def test_servers_are_under_the_root_path(root_path: str, url: str) -> None:
    assert ApiDocument([], has_key=False).under(root_path)["servers"] == [{"url": url}]


def test_a_pack_s_routes_are_in_the_document() -> None:
    with serving(scripted(), endpoints=[Plain(), Silent("/silent")]) as running:
        document = running.get("/openapi.json").json()
        assert running.get("/docs").status_code == 200
    assert document["paths"]["/plain"]["post"]["tags"] == ["plain"]
    assert document["components"]["schemas"]["Mine"]["required"] == ["mine"]
    assert "/silent" not in document["paths"]


def test_one_name_for_two_schemas_is_refused() -> None:
    class Mine(msgspec.Struct, kw_only=True):
        mine: str

    class Other(Plain):
        name = "other"

    with pytest.raises(PluginError, match=r"'plain' and 'other' describe different schemas as 'Mine'"):
        ApiDocument([Plain(), Other("/other", Mine)], has_key=False)


def test_the_server_s_own_schemas_keep_their_meaning() -> None:
    class ErrorBody(msgspec.Struct, kw_only=True):
        mine: str

    with pytest.raises(PluginError, match=r"'the server' and 'plain' describe different schemas as 'ErrorBody'"):
        ApiDocument([Plain("/plain", ErrorBody)], has_key=False)


def test_an_operation_is_described_once() -> None:
    with pytest.raises(PluginError, match=r"'plain' describes POST /plain a second time"):
        ApiDocument([Plain(), Plain()], has_key=False)


def test_the_document_isn_t_changed_by_who_reads_it() -> None:
    document = ApiDocument(builtin_endpoints(), has_key=True)
    first = json.dumps(document.under(""))
    document.under("/other")
    assert json.dumps(document.under("")) == first
