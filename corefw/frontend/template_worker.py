"""``python -m corefw.frontend.template_worker``: renders chat templates, with limits that the kernel keeps.

A template is code that came with a model, and messages come from anybody. Whatever they do together (loops that don't
end, a text of a gigabyte from one multiplication, a filter in C), it is this process that computes: the kernel ends it
after some seconds of computing and refuses it memory, while the parent goes on.

Requests come and answers go through one socket, each with a letter and its length in front: a request is pickled (the
parent is trusted), an answer is text (a template isn't). A request that is to be brief is given up soon: mostly by an
exception, or else, where it is one long step, with the process.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import resource
import signal
import socket
from collections.abc import Mapping
from datetime import datetime
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from jinja2.parser import Parser

__all__ = ["main"]

_BRIEF = b"B"
_TEXT, _REFUSAL, _FAILURE, _SLOW = b"T", b"R", b"F", b"S"
_MAX_CPU_S = 2.0
_MAX_BRIEF_CPU_S = 0.25
_BRIEF_S = 0.05
_MAX_TEXT_BYTES = 64 * 2**20
_MAX_MEMORY_BYTES = 768 * 2**20  # of addresses: Python and Jinja take 50 MiB
_MAX_MESSAGE_CHARS = 500


class _NotBriefError(BaseException):
    """A brief request has computed for too long. No Exception: neither templates nor Jinja shall catch it."""


class _TemplateRefusal(jinja2.TemplateError):
    """A template called ``raise_exception``."""


class _Generation(Extension):
    """``{% generation %}``: marks text for training; its body stands as it is, and variables set in it end with it."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [nodes.Scope(body, lineno=line)]


def _raise_exception(message: object) -> None:
    raise _TemplateRefusal(str(message))


def _strftime_now(layout: str) -> str:
    return datetime.now().astimezone().replace(tzinfo=None).strftime(layout)  # as Hugging Face: %Z is empty


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
    """The sandbox, with what models' templates expect."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = _strftime_now
    return made


class _Templates:
    """What the parent asks for."""

    def __init__(self) -> None:
        self._templates: dict[str, jinja2.Template] = {}

    def compile(self, sources: Mapping[str, str]) -> tuple[bytes, str]:
        """Compiling computes constant expressions, so it has limits, too."""
        made = _environment()
        for name, source in sources.items():
            try:
                self._templates[name] = made.from_string(source)
            except Exception as error:
                return _FAILURE, f"the chat template {name[:40]!r} isn't valid ({_bounded(error)})"
        return _TEXT, ""

    def render(self, name: str, variables: Mapping[str, Any]) -> tuple[bytes, str]:
        try:
            return _TEXT, self._templates[name].render(variables)
        except _TemplateRefusal as error:
            return _REFUSAL, _bounded(error)
        except Exception as error:  # a template is code that came with the model
            return _FAILURE, _bounded(error)


def main() -> None:
    """Answer until the parent closes its end of the socket, which is standard input."""
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # whoever started the parent may have had it ignored or blocked
    signal.signal(signal.SIGVTALRM, _give_up)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF, signal.SIGVTALRM})
    templates = _Templates()
    with (
        contextlib.suppress(ConnectionError),  # the parent has gone
        socket.socket(fileno=0) as link,
        link.makefile("rb") as requests,
    ):
        while len(head := requests.read(9)) == 9:
            is_brief = head[:1] == _BRIEF
            # When it expires, the kernel ends this process, in the middle of whatever it is.
            signal.setitimer(signal.ITIMER_PROF, _MAX_BRIEF_CPU_S if is_brief else _MAX_CPU_S)
            request = requests.read(int.from_bytes(head[1:]))
            letter, answer = _brief_answer(templates, request) if is_brief else _answer(templates, request)
            signal.setitimer(signal.ITIMER_PROF, 0)
            link.sendall(letter + len(answer).to_bytes(8) + answer)


def _brief_answer(templates: _Templates, request: bytes) -> tuple[bytes, bytes]:
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, _BRIEF_S)
        try:
            return _answer(templates, request)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except _NotBriefError:
        return _SLOW, b""


def _give_up(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    raise _NotBriefError


def _answer(templates: _Templates, request: bytes) -> tuple[bytes, bytes]:
    try:
        method, arguments = pickle.loads(request)
        letter, text = getattr(templates, method)(*arguments)
        answer = text.encode("utf-8", "surrogatepass")
    except Exception as error:  # what the parent pickled isn't importable here
        return _FAILURE, _bounded(error).encode()
    if len(answer) > _MAX_TEXT_BYTES:
        return _FAILURE, f"it makes a prompt of {len(answer)} bytes; {_MAX_TEXT_BYTES} is the limit".encode()
    return letter, answer


def _bounded(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "it takes too much memory"
    said = str(error)[:_MAX_MESSAGE_CHARS].encode("utf-8", "replace").decode()  # lone surrogates go into no message
    return said or type(error).__name__


if __name__ == "__main__":
    main()
