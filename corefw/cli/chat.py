"""``corefw chat``: a conversation in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import Any

from corefw.cli.client.connect import Session, add_connection_flags, connected
from corefw.cli.client.transport import TransportError, events
from corefw.cli.sampling_flags import add_sampling_flags, sampling_fields

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``corefw chat``."""
    add_connection_flags(parser)
    parser.add_argument("--system-prompt", help="the conversation's first message, from the operator")
    parser.add_argument("-q", "--quick", metavar="MESSAGE", help="send one message, print the answer, and end")
    add_sampling_flags(parser)


def run(namespace: argparse.Namespace) -> int:
    """Talk until the input ends; Ctrl-C ends an answer."""
    messages: list[dict[str, str]] = []
    if namespace.system_prompt:
        messages.append({"role": "system", "content": namespace.system_prompt})
    fields = sampling_fields(namespace)
    with connected(namespace) as session:
        if namespace.quick is not None:
            _turn(session, messages, namespace.quick, fields)
            return 0
        print(f"Talking to {session.model}; Ctrl-D ends.", file=sys.stderr)
        while (message := _read_line()) is not None:
            _turn_or_complaint(session, messages, message, fields)
    return 0


def _read_line() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None


def _turn_or_complaint(session: Session, messages: list[dict[str, str]], message: str, fields: dict[str, Any]) -> None:
    """A failed or interrupted turn leaves the conversation as it was before."""
    before = len(messages)
    try:
        _turn(session, messages, message, fields)
    except KeyboardInterrupt:
        print("\n(interrupted)", file=sys.stderr)
        del messages[before:]
    except TransportError as error:
        print(f"error: {error}", file=sys.stderr)
        del messages[before:]


def _turn(session: Session, messages: list[dict[str, str]], message: str, fields: dict[str, Any]) -> None:
    messages.append({"role": "user", "content": message})
    answer = session.runner.run(_answer(session, {"messages": messages, **fields}))
    messages.append({"role": "assistant", "content": answer})


async def _answer(session: Session, fields: dict[str, Any]) -> str:
    body = {"model": session.model, "stream": True, **fields}
    parts: list[str] = []
    async with contextlib.aclosing(events(session.transport, "/v1/chat/completions", body)) as chunks:
        async for chunk in chunks:
            for choice in chunk["choices"]:
                parts.append(choice["delta"].get("content") or "")
                print(parts[-1], end="", flush=True)
    print(flush=True)
    return "".join(parts)
