"""Schemas in words."""

from __future__ import annotations

from typing import Any

import pytest

from corefw.server.schema_text import schema_html

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "type": ({"type": "integer"}, "integer"),
    "range": ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "number (more than 0, at most 1)"),
    "zero": ({"type": "integer", "minimum": 0, "default": 0}, "integer (at least 0, default 0)"),
    "null": ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, "string or null"),
    "types": ({"type": ["string", "boolean"]}, "string or true or false"),
    "reference": ({"$ref": "#/components/schemas/Usage"}, '<a href="#Usage">Usage</a>'),
    "enum": ({"enum": [None, "auto", ""]}, "<code>null</code> or <code>auto</code> or <code>&quot;&quot;</code>"),
    "const": ({"const": "text"}, "<code>text</code>"),
    "list": (
        {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": 4},
        "list of [string (at least 1 characters)] (at most 4 entries)",
    ),
    "entries beside a choice": (
        {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}], "items": {"minimum": 0}},
        "list of [integer (at least 0)] or null",
    ),
    "object": (
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {}}, "required": ["a"]},
        "object { <code>a</code>: string; <code>b</code>?: any value }",
    ),
    "map": ({"type": "object", "additionalProperties": {"type": "number"}}, "object of [number]"),
    "closed": ({"type": "object", "additionalProperties": False}, "object"),
    "markup": ({"type": "<b>", "pattern": "<i>"}, "&lt;b&gt; (matches &lt;i&gt;)"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_schema_is_told_in_words(case: str) -> None:
    schema, words = CASES[case]
    assert schema_html(schema) == words
