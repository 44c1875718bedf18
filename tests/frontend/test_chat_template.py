from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from corefw.errors import ConfigError, RequestError
from corefw.frontend.chat_template import (
    ChatTemplate,
    templates_of_directory,
    templates_of_gguf,
    templates_of_option,
)


def render(source: str, **variables: Any) -> str:
    return ChatTemplate({"default": source}).render({"messages": [], **variables})


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% if true %}\n  {% if true %}\nx\n  {% endif %}\n{% endif %}", "x\n"),
        ("{{ {'a': '<é>', 'b': [1, none]} | tojson }}", '{"a": "<é>", "b": [1, null]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{% generation %}hi{% endgeneration %}", "hi"),
        ("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("{% for i in range(4) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "023"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ unknown }}|{{ messages }}", "|[]"),
    ],
)
def test_templates_are_rendered_as_models_expect(source: str, expected: str) -> None:
    assert render(source) == expected


def test_a_template_refuses_with_its_own_words() -> None:
    with pytest.raises(RequestError, match=r"refuses the messages: roles must alternate$") as raised:
        render("{{ raise_exception('roles must alternate') }}")
    assert (raised.value.param, raised.value.status) == ("messages", 400)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' + 1 }}",
        "{{ unknown.attribute.deeper }}",
        "{{ 1 // 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('x' * 100000) }}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_a_template_that_fails_or_breaks_out_is_a_request_error(source: str) -> None:
    with pytest.raises(RequestError) as raised:
        render(source)
    assert raised.value.param == "messages"
    assert len(raised.value.message) < 700


def test_without_a_template_the_message_says_so() -> None:
    with pytest.raises(RequestError, match=r"no chat template.*--chat-template"):
        ChatTemplate({}).render({"messages": []})


def test_a_template_that_isnt_valid_stops_the_start() -> None:
    with pytest.raises(ConfigError, match=r"isn't valid.*--chat-template"):
        ChatTemplate({"default": "{% if %}"})


def test_tools_choose_the_template_for_tools() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "tools"})
    assert template.render({"tools": [{}]}) == "tools"
    assert template.render({"tools": None}) == "plain"


def test_the_option_is_a_file_or_the_text_itself(tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("{{ 1 }}", encoding="utf-8")
    assert templates_of_option(str(file)) == templates_of_option("{{ 1 }}") == {"default": "{{ 1 }}"}
    with pytest.raises(ConfigError, match="neither a readable file nor template text"):
        templates_of_option(str(tmp_path / "missing.jinja"))
    with pytest.raises(ConfigError):
        templates_of_option("x" * 10_000)


def test_a_gguf_file_has_one_template_and_perhaps_named_ones() -> None:
    metadata = {
        "tokenizer.chat_template": "d",
        "tokenizer.chat_template.tool_use": "t",
        "tokenizer.chat_templates": ["x"],
    }
    assert templates_of_gguf(metadata) == {"default": "d", "tool_use": "t"}
    assert templates_of_gguf({}) == {}


def test_a_directory_has_a_template_file_or_an_entry(tmp_path: Path) -> None:
    assert templates_of_directory(tmp_path) == {}
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(json.dumps({"chat_template": "c"}), encoding="utf-8")
    assert templates_of_directory(tmp_path) == {"default": "c"}
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    settings.write_text(json.dumps({"chat_template": named}), encoding="utf-8")
    assert templates_of_directory(tmp_path) == {"default": "d", "tool_use": "t"}
    (tmp_path / "chat_template.jinja").write_text("j", encoding="utf-8")
    assert templates_of_directory(tmp_path) == {"default": "j"}
