"""The page shows the whole document, loads nothing, runs nothing, and takes no text for markup."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from typing import Any

import pytest
from starlette.routing import BaseRoute

from corefw.interfaces.endpoint import Endpoint
from corefw.server.openapi_document import ApiDocument
from corefw.server.openapi_page import CONTENT_SECURITY_POLICY, render_page
from tests.server.serving import builtin_endpoints

VOID = {"meta", "br"}
# None of them loads or runs anything.
HEADINGS = {"h1", "h2", "h3", "h4"}
TABLES = {"table", "tr", "th", "td"}
FRAME = {"html", "head", "meta", "title", "style", "body", "details", "summary", "section"}
TAGS = HEADINGS | TABLES | FRAME | {"p", "a", "code", "pre", "br"}
ATTRIBUTES = {"lang", "charset", "name", "content", "href", "id", "class"}
EVIL = "<script>alert(1)</script> \"'><img src=x onerror=alert(1)> & `</code>`"


class Page(HTMLParser):
    """Reads a page, and checks that what is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in self.open[-1:]:
            self.texts.setdefault(tag, []).append(data)

    @property
    def text(self) -> str:
        return "".join(text for tag in self.texts if tag != "style" for text in self.texts[tag])


class Evil(Endpoint):
    """Writes markup wherever a text may stand."""

    name = "evil"
    prefix = ""

    def routes(self) -> Sequence[BaseRoute]:
        return []

    def openapi(self) -> Mapping[str, Any]:
        schema = {
            "description": EVIL,
            "type": "object",
            "required": [EVIL],
            "properties": {
                EVIL: {"description": EVIL, "type": EVIL, "pattern": EVIL, "default": EVIL},
                "link": {"$ref": f"#/components/schemas/{EVIL}"},
                "choice": {"enum": [EVIL, {"x": EVIL}]},
                "inner": {"type": "object", "properties": {EVIL: {"const": EVIL}}},
            },
        }
        operation = {
            "summary": EVIL,
            "description": EVIL,
            "operationId": EVIL,
            "parameters": [{"name": EVIL, "in": "path", "description": EVIL, "schema": {"type": "string"}}],
            "requestBody": {"content": {EVIL: {"schema": schema, "examples": {EVIL: {"value": {EVIL: EVIL}}}}}},
            "responses": {
                "2" + EVIL: {"description": EVIL, "headers": {EVIL: {"description": EVIL}}},
                "400": {"description": EVIL},
            },
        }
        return {"paths": {EVIL: {"x" + EVIL: operation}}, "components": {"schemas": {EVIL: schema}}}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return ApiDocument(builtin_endpoints(), has_key=True).under("/llm")


@pytest.fixture(scope="module")
def page(document: dict[str, Any]) -> Page:
    return Page(render_page(document))


def test_every_operation_is_on_the_page(document: dict[str, Any], page: Page) -> None:
    shown = {attrs["id"] for tag, attrs in page.tags if tag == "details"}
    described = {op["operationId"] for methods in document["paths"].values() for op in methods.values()}
    assert shown == {name for name in described if not name.startswith("head_")}
    assert "GET, HEAD /health" in page.text
    assert all(path in page.text for path in document["paths"])


def test_every_schema_and_each_of_its_fields_is_on_the_page(document: dict[str, Any], page: Page) -> None:
    codes = set(page.texts["code"])
    for schema in document["components"]["schemas"].values():
        assert set(schema["properties"]) <= codes
    assert "at least 0, at most 100.0" in page.text


def test_every_link_within_the_page_leads_somewhere(page: Page) -> None:
    links = {str(attrs["href"]) for tag, attrs in page.tags if tag == "a"}
    anchors = {f"#{attrs['id']}" for _, attrs in page.tags if "id" in attrs}
    assert len(links) > 10
    assert links - anchors == {"/llm/openapi.json"}


def test_statuses_and_the_need_of_a_key_are_on_the_page(page: Page) -> None:
    for status in ("200", "400", "401", "404", "405", "408", "413", "429", "431", "500", "503"):
        assert status in page.texts["th"]
    assert "Authorization: Bearer KEY" in page.texts["code"]
    assert page.text.count("Needs no key.") == 3


def test_a_server_without_a_key_asks_for_none() -> None:
    page = Page(render_page(ApiDocument(builtin_endpoints(), has_key=False).under("")))
    assert "Authorization: Bearer KEY" not in page.text
    assert "401" not in page.texts["th"]


def test_the_page_loads_and_runs_nothing(page: Page) -> None:
    tags = {tag for tag, _ in page.tags}
    assert (
        tags & {"script", "link", "img", "iframe", "object", "embed", "form", "base", "svg", "video", "audio"} == set()
    )
    names = {name for _, attrs in page.tags for name in attrs}
    assert names == {"lang", "charset", "name", "content", "href", "id", "class"}
    style = "".join(page.texts["style"])
    assert "url(" not in style
    assert "@import" not in style


def test_the_policy_allows_the_page_s_own_style_alone(page: Page) -> None:
    digest = base64.b64encode(hashlib.sha256("".join(page.texts["style"]).encode()).digest()).decode()
    directives = dict(part.strip().split(" ", 1) for part in CONTENT_SECURITY_POLICY.split(";"))
    assert directives == {
        "default-src": "'none'",
        "style-src": f"'sha256-{digest}'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


def test_no_text_becomes_markup() -> None:
    document = ApiDocument([Evil()], has_key=True).under(EVIL)
    document["info"] = {"title": EVIL, "version": EVIL, "description": EVIL}
    page = Page(render_page(json.loads(json.dumps(document))))
    assert {tag for tag, _ in page.tags} <= TAGS
    assert {name for _, attrs in page.tags for name in attrs} <= ATTRIBUTES
    assert page.text.count("<script>alert(1)</script>") > 20


def test_names_in_double_backticks_are_code_as_well() -> None:
    text = render_page(ApiDocument(builtin_endpoints(), has_key=False).under(""))
    assert "<code></code>" not in text
    assert "<code>usage</code>" in text  # of a docstring
