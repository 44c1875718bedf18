"""``corefw complete``: continue texts in the terminal."""

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
    """Flags of ``corefw complete``."""
    add_connection_flags(parser)
    parser.add_argument("-q", "--quick", metavar="PROMPT", help="continue this text, and end; else one a line of input")
    add_sampling_flags(parser)


def run(namespace: argparse.Namespace) -> int:
    """Continue each line of the input until it ends; Ctrl-C ends a continuation."""
    fields = sampling_fields(namespace)
    with connected(namespace) as session:
        if namespace.quick is not None:
            session.runner.run(_complete(session, namespace.quick, fields))
            return 0
        print(f"{session.model} continues each line; Ctrl-D ends.", file=sys.stderr)
        for line in sys.stdin:
            try:
                session.runner.run(_complete(session, line.rstrip("\n"), fields))
            except KeyboardInterrupt:
                print("\n(interrupted)", file=sys.stderr)
            except TransportError as error:
                print(f"error: {error}", file=sys.stderr)
    return 0


async def _complete(session: Session, prompt: str, fields: dict[str, Any]) -> None:
    body = {"model": session.model, "prompt": prompt, "stream": True, **fields}
    async with contextlib.aclosing(events(session.transport, "/v1/completions", body)) as chunks:
        async for chunk in chunks:
            for choice in chunk["choices"]:
                print(choice["text"], end="", flush=True)
    print(flush=True)
