"""Chat templates: where they come from, and rendering them in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from corefw.errors import ConfigError, RequestError
from corefw.frontend.tokenizer.directory import read_json

if TYPE_CHECKING:
    from jinja2.parser import Parser

__all__ = ["ChatTemplate", "templates_of_directory", "templates_of_gguf", "templates_of_option"]

_MAX_MESSAGE_CHARS = 500
_TOOL_USE = "tool_use"


class _TemplateRefusal(jinja2.TemplateError):
    """A template called ``raise_exception``."""


class _Generation(Extension):
    """``{% generation %}``: marks assistant text for training; here its body stands as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: object) -> None:
    raise _TemplateRefusal(str(message))


def _strftime_now(layout: str) -> str:
    return datetime.now().astimezone().strftime(layout)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As Hugging Face's: readable text, not escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """A model's templates, compiled. Rendering is safe from any thread.

    Args:
        sources: template text by name; ``default`` is used, with tools ``tool_use`` where there is one.

    Attributes:
        source: text of the default template, if there is one.

    Raises:
        ConfigError: a template isn't valid Jinja.
    """

    def __init__(self, sources: Mapping[str, str]) -> None:
        environment = _environment()
        self.source = sources.get("default")
        self._templates: dict[str, jinja2.Template] = {}
        for name, source in sources.items():
            try:
                self._templates[name] = environment.from_string(source)
            except jinja2.TemplateError as error:
                what = f"the chat template {name[:40]!r} isn't valid ({_bounded(error)})"
                raise ConfigError(f"{what}; name another with --chat-template") from error

    def render(self, variables: Mapping[str, Any]) -> str:
        """The prompt's text.

        Raises:
            RequestError: there is no template, it refuses the messages, or it fails on them; ``param`` is messages.
        """
        template = self._choose(variables)
        try:
            return template.render(variables)
        except _TemplateRefusal as error:
            raise RequestError(
                f"the chat template refuses the messages: {_bounded(error)}", param="messages"
            ) from error
        except Exception as error:  # a template is code that came with the model
            message = f"the chat template can't render the messages: {_bounded(error)}"
            raise RequestError(message, param="messages") from error

    def _choose(self, variables: Mapping[str, Any]) -> jinja2.Template:
        wanted = _TOOL_USE if variables.get("tools") and _TOOL_USE in self._templates else "default"
        template = self._templates.get(wanted)
        if template is None:
            raise RequestError(
                "the model has no chat template; use /v1/completions, or start the server with --chat-template",
                param="messages",
            )
        return template


def templates_of_option(value: str) -> dict[str, str]:
    """The operator's template: a file's name or the text itself.

    Raises:
        ConfigError: neither.
    """
    if "{%" in value or "{{" in value or "\n" in value:
        return {"default": value}
    try:
        return {"default": Path(value).expanduser().read_text(encoding="utf-8")}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--chat-template {value[:80]!r} is neither a readable file nor template text (which has {{{{ or {{%)"
        ) from error


def templates_of_gguf(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The templates in a GGUF file: one, and perhaps named ones."""
    prefix = "tokenizer.chat_template"
    found = {
        key.removeprefix(f"{prefix}."): value
        for key, value in metadata.items()
        if key.startswith(f"{prefix}.") and isinstance(value, str)
    }
    default = metadata.get(prefix)
    return {**found, "default": default} if isinstance(default, str) else found


def templates_of_directory(directory: Path) -> dict[str, str]:
    """The templates of a model directory: ``chat_template.jinja``, else what ``tokenizer_config.json`` has."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        return {"default": file.read_text(encoding="utf-8")}
    value = read_json(directory / "tokenizer_config.json").get("chat_template")
    if isinstance(value, str):
        return {"default": value}
    entries = value if isinstance(value, list) else []
    return {str(entry["name"]): str(entry["template"]) for entry in entries if {"name", "template"} <= set(entry)}


def _bounded(error: Exception) -> str:
    return str(error)[:_MAX_MESSAGE_CHARS]
