"""Chat templates: where they come from, and rendering them in processes of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corefw.config.regular_file import read_regular_text
from corefw.errors import ConfigError, RequestError
from corefw.frontend.template_pool import Lane, TemplatePool
from corefw.frontend.tokenizer.directory import read_json

__all__ = ["ChatTemplate", "SlowTemplateError", "templates_of_directory", "templates_of_gguf", "templates_of_option"]

_TOOL_USE = "tool_use"
_MAX_FILE_BYTES = 2**20


class SlowTemplateError(Exception):
    """Rendering isn't quick; the slow lane may do it."""


class ChatTemplate:
    """A model's templates, compiled in a process that is started at once. Rendering is safe from any thread.

    Args:
        sources: template text by name; ``default`` is used, with tools ``tool_use`` where there is one.

    Attributes:
        source: text of the default template, if there is one.
    """

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.source = sources.get("default")
        self._names = frozenset(sources)
        self._processes = TemplatePool(sources) if sources else None

    def check(self) -> None:
        """Wait until the templates are compiled.

        Raises:
            ConfigError: a template isn't valid Jinja, or compiling it takes too much time or memory.
        """
        if self._processes is not None and (problem := self._processes.problem()) is not None:
            raise ConfigError(f"{problem}; name another with --chat-template")

    def render(self, variables: Mapping[str, Any], *, lane: Lane = "any") -> str:
        """The prompt's text. It may take seconds: a template that takes longer is stopped.

        Args:
            variables: what the template uses.
            lane: see ``TemplatePool``.

        Raises:
            SlowTemplateError: it isn't rendered quickly, and the lane is the quick one.
            RequestError: there is no template, it refuses the messages, fails on them, or takes too much time or
                memory; ``param`` is messages.
            EngineError: the process that renders can't be started, or doesn't answer.
        """
        name = _TOOL_USE if variables.get("tools") and _TOOL_USE in self._names else "default"
        if self._processes is None or name not in self._names:
            raise RequestError(
                "the model has no chat template; use /v1/completions, or start the server with --chat-template",
                param="messages",
            )
        answer = self._processes.render(name, variables, lane=lane)
        if answer.is_slow:
            raise SlowTemplateError
        if answer.refused is not None:
            raise RequestError(f"the chat template refuses the messages: {answer.refused}", param="messages")
        if answer.problem is not None:
            raise RequestError(f"the chat template can't render the messages: {answer.problem}", param="messages")
        return answer.text


def templates_of_option(value: str) -> dict[str, str]:
    """The operator's template: a file's name or the text itself.

    Raises:
        ConfigError: neither.
    """
    if "{%" in value or "{{" in value or "\n" in value:
        return {"default": value}
    try:
        return {"default": read_regular_text(Path(value).expanduser(), _MAX_FILE_BYTES)}
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: ~ of an unknown user
        raise ConfigError(
            f"--chat-template {value[:80]!r} is neither a readable file nor template text, which has {{{{ or {{% "
            f"({_reason(error)})"
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
    try:
        return {"default": read_regular_text(file, _MAX_FILE_BYTES)}
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file} can't be read ({_reason(error)}); fetch it again, or name another with --chat-template"
        ) from error
    value = read_json(directory / "tokenizer_config.json").get("chat_template")
    if isinstance(value, str):
        return {"default": value}
    entries = value if isinstance(value, list) else []
    return {str(entry["name"]): str(entry["template"]) for entry in entries if {"name", "template"} <= set(entry)}


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)[:80]
