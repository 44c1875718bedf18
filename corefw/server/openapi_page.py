"""The OpenAPI document as one HTML page: no script, nothing from elsewhere, every text escaped."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from corefw.server.schema_text import schema_html

__all__ = ["CONTENT_SECURITY_POLICY", "render_page"]

_STYLE = """
:root { color-scheme: light dark; --line: #8885; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 0.9em/1.4 ui-monospace, monospace; background: var(--soft); border-radius: 4px; }
code { padding: 0.1em 0.3em; overflow-wrap: anywhere; } pre { padding: 0.8em; overflow-x: auto; }
details, section.schema { border: 1px solid var(--line); border-radius: 6px; padding: 0.5rem 1rem; margin: 0.7rem 0; }
summary { cursor: pointer; } summary code { font-weight: 600; }
table { border-collapse: collapse; width: 100%; } h4 { margin: 1rem 0 0.3rem; }
th, td { text-align: left; vertical-align: top; padding: 0.3rem 0.8rem 0.3rem 0; border-top: 1px solid var(--line); }
th { font-weight: inherit; max-width: 20rem; }
""".strip()
# Nothing may be loaded or run, from anywhere; the one style is known by its digest.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'sha256-"
    + base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


_BACKTICKS = re.compile("`+")


def render_page(document: Mapping[str, Any]) -> str:
    """HTML of a document that ``ApiDocument`` made."""
    info = document["info"]
    title = escape(f"{info['title']} {info['version']}")
    root = document["servers"][0]["url"].rstrip("/")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n<body><h1>{title}</h1>"
        f"<p>{_prose(info['description'])}</p>"
        f'<p>For programs: <a href="{escape(root)}/openapi.json">openapi.json</a> (OpenAPI 3.1).{_key(document)}</p>\n'
        f"{_operations(document)}\n{_schemas(document)}\n</body></html>\n"
    )


def _key(document: Mapping[str, Any]) -> str:
    if not document["components"].get("securitySchemes"):
        return ""
    return _prose(" This server wants a key: `Authorization: Bearer KEY`.")


def _operations(document: Mapping[str, Any]) -> str:
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method == "head" and "get" in methods:
                continue
            shown = "GET, HEAD" if method == "get" and "head" in methods else method.upper()
            by_tag.setdefault(operation["tags"][0], []).append(_operation(document, shown, path, operation))
    return "\n".join(f"<h2>{escape(tag)}</h2>\n" + "\n".join(shown) for tag, shown in by_tag.items())


def _operation(document: Mapping[str, Any], method: str, path: str, operation: Mapping[str, Any]) -> str:
    parts = [f"<p>{_prose(operation['description'])}</p>"] if "description" in operation else []
    if operation.get("security") == []:
        parts.append("<p>Needs no key.</p>")
    if parameters := operation.get("parameters"):
        rows = ((f"<code>{escape(p['name'])}</code>", _prose(p["description"])) for p in parameters)
        parts.append("<h4>In the path</h4>" + _table(rows))
    if body := operation.get("requestBody"):
        parts.append("<h4>Body</h4>" + _media(body["content"]))
    answers = (_answer(document, status, response) for status, response in operation["responses"].items())
    parts.append("<h4>Answers</h4>" + _table(answers))
    head = f"<code>{escape(method)} {escape(path)}</code> {_prose(operation['summary'])}"
    return f'<details id="{escape(operation["operationId"])}"><summary>{head}</summary>{"".join(parts)}</details>'


def _answer(document: Mapping[str, Any], status: str, response: Mapping[str, Any]) -> tuple[str, str]:
    if reference := response.get("$ref"):
        response = document["components"]["responses"][reference.rsplit("/", 1)[1]]
    text = _prose(response["description"])
    for name, header in response.get("headers", {}).items():
        text += f"<br>Header <code>{escape(name)}</code>: {_prose(header['description'])}"
    return escape(status), text + ("" if status[0] in "45" else _media(response.get("content", {})))


def _media(content: Mapping[str, Any]) -> str:
    parts = []
    for kind, media in content.items():
        described = media["schema"].get("description", "")
        parts.append(f"<p><code>{escape(kind)}</code>: {schema_html(media['schema'])} {_prose(described)}</p>")
        for title, example in media.get("examples", {}).items():
            shown = json.dumps(example["value"], indent=2, ensure_ascii=False)
            parts.append(f"<p>{_prose(title)}:</p><pre>{escape(shown)}</pre>")
    return "".join(parts)


def _schemas(document: Mapping[str, Any]) -> str:
    shown = (_schema(name, schema) for name, schema in sorted(document["components"]["schemas"].items()))
    return "<h2>Schemas</h2>\n" + "\n".join(shown)


def _schema(name: str, schema: Mapping[str, Any]) -> str:
    required = frozenset(schema.get("required", ()))
    rows = (
        (
            f"<code>{escape(field)}</code>" + (" (required)" if field in required else ""),
            f"{schema_html(of_field)}<br>{_prose(of_field.get('description', ''))}",
        )
        for field, of_field in schema.get("properties", {}).items()
    )
    return (
        f'<section class="schema" id="{escape(name)}"><h3>{escape(name)}</h3>'
        f"<p>{_prose(schema.get('description', ''))}</p>{_table(rows) or schema_html(schema)}</section>"
    )


def _table(rows: Iterable[tuple[str, str]]) -> str:
    cells = "".join(f"<tr><th>{head}</th><td>{text}</td></tr>" for head, text in rows)
    return f"<table>{cells}</table>" if cells else ""


def _prose(text: str) -> str:
    """Escaped; what stands in backticks, single as in Markdown or double as in docstrings, is code."""
    parts = _BACKTICKS.split(text)
    if len(parts) % 2 == 0:
        return escape(text)
    return "".join(f"<code>{escape(part)}</code>" if i % 2 else escape(part) for i, part in enumerate(parts))
