"""A JSON schema in words, as HTML."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

__all__ = ["schema_html"]

_PLAIN = {"array": "list", "null": "null", "boolean": "true or false"}
_RANGES = (
    ("minimum", "at least {}"),
    ("exclusiveMinimum", "more than {}"),
    ("maximum", "at most {}"),
    ("exclusiveMaximum", "less than {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minItems", "at least {} entries"),
    ("maxItems", "at most {} entries"),
    ("maxProperties", "at most {} entries"),
    ("pattern", "matches {}"),
)


def schema_html(schema: Mapping[str, Any]) -> str:
    """A line that says what is accepted; a reference becomes a link within the page."""
    kinds = list(_kinds(schema))
    limits = [escape(text.format(_shown(schema[key]))) for key, text in _RANGES if key in schema]
    if schema.get("default") is not None:
        limits.append(f"default {escape(_shown(schema['default']))}")
    return " or ".join(kinds) + (f" ({', '.join(limits)})" if limits else "")


def _kinds(schema: Mapping[str, Any]) -> Iterator[str]:
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[1])
        yield f'<a href="#{name}">{name}</a>'
    elif "enum" in schema or "const" in schema:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        yield from (f"<code>{escape(_shown(value))}</code>" for value in values)
    elif "anyOf" in schema:
        yield from (schema_html(_joined(schema, part)) for part in schema["anyOf"])
    elif "type" not in schema:
        yield "any value"
    else:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        yield from (_of_type(schema, name) for name in types)


def _joined(schema: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part with what the whole says of entries."""
    beside = {"array": ("items",), "object": ("properties", "required", "additionalProperties")}
    return {**part, **_entries(schema, part, beside.get(str(part.get("type")), ()))}


def _entries(schema: Mapping[str, Any], part: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {
        key: {**part.get(key, {}), **schema[key]} if isinstance(schema[key], dict) else schema[key]
        for key in keys
        if key in schema
    }


def _of_type(schema: Mapping[str, Any], name: str) -> str:
    if name == "array" and "items" in schema:
        return f"list of [{schema_html(schema['items'])}]"
    if name == "object" and "properties" in schema:
        required = schema.get("required", ())
        fields = (
            f"<code>{escape(field)}</code>{'' if field in required else '?'}: {schema_html(of_field)}"
            for field, of_field in schema["properties"].items()
        )
        return f"object {{ {'; '.join(fields)} }}"
    if name == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of [{schema_html(schema['additionalProperties'])}]"
    return escape(_PLAIN.get(name, name))


def _shown(value: object) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
