"""OpenAPI fragments: what an endpoint's routes take and answer, made of the structs that the routes use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from corefw.server.protocol.answers import ErrorBody
from corefw.server.protocol.fields import RequestShape

__all__ = ["GENERATION_ERRORS", "JSON", "Operation", "answer_schemas", "error_answer", "fragment"]

JSON = "application/json"
# What a route that generates may answer besides its own.
GENERATION_ERRORS: Mapping[int, str] = {
    404: "No model of that name is served.",
    429: "There is no room for the request now; it may be tried again.",
    504: "The request took longer than the server's --request-timeout. In a stream it is an event with the error.",
}
_EVENTS = "text/event-stream"
_DONE = "[DONE]"
_RETRY_AFTER = {"Retry-After": "Seconds to wait before the next try."}
_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One method of one path. What the server adds for every route (401, 405, 413 …) isn't said here.

    Attributes:
        method: in capitals. GET brings HEAD with it.
        path: as OpenAPI writes it: ``/v1/models/{model}``, without a converter.
        summary: a few words.
        description: more, where there is more to say.
        request: what decodes the body: a ``RequestShape``, or a struct that forbids unknown fields.
        answer: the struct of status 200; None where the body isn't JSON.
        text_types: content types of status 200 that are text; with neither them nor ``answer`` there is no body.
        events: the struct of one event, where the route can stream.
        errors: further statuses with their reasons; all have the error body. 400 is added where there is a request.
        parameters: what the parameters in the path mean, by name.
        examples: bodies that work, by title.
    """

    method: str
    path: str
    summary: str
    description: str = ""
    request: RequestShape[Any] | type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None
    text_types: tuple[str, ...] = ()
    events: type[msgspec.Struct] | None = None
    errors: Mapping[int, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    examples: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def fragment(*operations: Operation) -> dict[str, Any]:
    """What ``Endpoint.openapi`` returns for routes that are described by ``operations``."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        methods = paths.setdefault(operation.path, {})
        methods[operation.method.lower()] = described = _describe(operation)
        if operation.method == "GET":
            methods["head"] = _without_bodies(described)
    return {"paths": paths, "components": {"schemas": _schemas(operations)}}


def _describe(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {"summary": operation.summary, "operationId": _operation_id(operation)}
    if operation.description:
        described["description"] = operation.description
    if names := _PARAMETER.findall(operation.path):
        described["parameters"] = [_parameter(name, operation.parameters[name]) for name in names]
    errors = dict(operation.errors)
    if operation.request is not None:
        described["requestBody"] = _body(operation)
        errors.setdefault(400, "The body is not what this route takes; `param` names the field.")
    described["responses"] = {"200": _success(operation)}
    for status, description in errors.items():
        described["responses"][str(status)] = error_answer(description, _RETRY_AFTER if status == 429 else None)
    return described


def _without_bodies(get: Mapping[str, Any]) -> dict[str, Any]:
    """HEAD of what GET answers."""
    responses = {
        status: {name: value for name, value in response.items() if name != "content"}
        for status, response in get["responses"].items()
    }
    operation_id = get["operationId"].replace("get_", "head_", 1)
    return {**get, "operationId": operation_id, "responses": responses}


def _operation_id(operation: Operation) -> str:
    words = re.findall(r"\w+", operation.path)
    return "_".join([operation.method.lower(), *words])


def _parameter(name: str, description: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "description": description, "schema": schema}


def _body(operation: Operation) -> dict[str, Any]:
    request = operation.request
    struct = request.struct if isinstance(request, RequestShape) else request
    assert struct is not None, "only operations with a request have a body"
    media: dict[str, Any] = {"schema": _ref(struct)}
    if operation.examples:
        media["examples"] = {title: {"value": dict(value)} for title, value in operation.examples.items()}
    return {"required": True, "content": {JSON: media}}


def _success(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {kind: {"schema": {"type": "string"}} for kind in operation.text_types}
    if operation.answer is not None:
        content[JSON] = {"schema": _ref(operation.answer)}
    if not content:
        return {"description": "Done."}
    if operation.events is None:
        return {"description": "The answer.", "content": content}
    content[_EVENTS] = {"schema": _event_schema(operation.events)}
    return {"description": "The answer, or with `stream: true` its parts as they come.", "content": content}


def _event_schema(event: type[msgspec.Struct]) -> dict[str, Any]:
    """One event: before 3.2 OpenAPI has no words for a stream, and readers take the schema for that of each event."""
    payload = {"contentMediaType": JSON, "contentSchema": {"anyOf": [_ref(event), _ref(ErrorBody)]}}
    return {
        "description": (
            f"One of the server-sent events. Its data is a `{event.__name__}` as JSON, an `ErrorBody` where the stream "
            "breaks, or `[DONE]` at the end."
        ),
        "type": "object",
        "properties": {"data": {"type": "string", "if": {"const": _DONE}, "else": payload}},
        "required": ["data"],
    }


def error_answer(description: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """An answer with the error body; ``headers`` are names and what they say."""
    answer: dict[str, Any] = {"description": description, "content": {JSON: {"schema": _ref(ErrorBody)}}}
    if headers:
        answer["headers"] = {
            name: {"description": text, "schema": {"type": "string"}, "required": True}
            for name, text in headers.items()
        }
    return answer


def _ref(struct: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _REF.format(name=struct.__name__)}


def _schemas(operations: Iterable[Operation]) -> dict[str, Any]:
    schemas: dict[str, Any] = {}
    for operation in operations:
        for struct in (operation.answer, operation.events):
            if struct is not None:
                schemas |= answer_schemas(struct)
        if operation.request is not None:
            schemas |= _request_schemas(operation.request)
    return schemas


def answer_schemas(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Components of what is answered: a field with a default is always there, one that may be ``UNSET`` isn't."""
    schemas = _components(struct)
    for schema in schemas.values():
        properties = schema.get("properties", {})
        required = {*schema.get("required", ()), *(name for name in properties if "default" in properties[name])}
        for name in properties:
            properties[name].pop("default", None)
        if properties:
            schema["required"] = [name for name in properties if name in required]
    return schemas


def _request_schemas(request: RequestShape[Any] | type[msgspec.Struct]) -> dict[str, Any]:
    if not isinstance(request, RequestShape):
        return _components(request)
    schemas = _components(request.struct)
    schema = schemas[request.struct.__name__]
    schema["additionalProperties"] = False
    _need(schema, request.needed)
    for name, accepted in sorted(request.neutral.items()):
        schema["properties"][name] = {"enum": [None, *accepted], "description": "Not supported; what asks for nothing."}
    for name in sorted(request.ignored):
        schema["properties"][name] = {"description": "Accepted; it never changes an answer."}
    return schemas


def _need(schema: dict[str, Any], names: tuple[str, ...]) -> None:
    """At least one of the fields must be there."""
    if len(names) == 1:
        schema["required"] = [*schema.get("required", ()), *names]
    elif names:
        schema["anyOf"] = [{"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in names]
    for name in names:
        schema["properties"][name].pop("default", None)


def _components(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return msgspec.json.schema_components([struct], ref_template=_REF)[1]
