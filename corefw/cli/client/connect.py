"""Which server a command talks to: one that runs elsewhere, or a model of its own."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass

from corefw import env
from corefw.cli.client.transport import Transport, first_model
from corefw.cli.config_file import add_config_flag
from corefw.cli.plugin_flags import add_plugin_flag
from corefw.config.args import SECTIONS, UserArgs, add_flags
from corefw.errors import ConfigError

__all__ = ["DEFAULT_URL", "ENGINE_SECTIONS", "Session", "add_connection_flags", "base_url", "connected"]

ENGINE_SECTIONS = tuple(name for name in SECTIONS if name != "server")
DEFAULT_URL = "http://127.0.0.1:8000/v1"


@dataclass(frozen=True, slots=True)
class Session:
    """A connection: the loop that it belongs to, and the model's name."""

    runner: asyncio.Runner
    transport: Transport
    model: str


def add_connection_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of a command that takes MODEL or ``--url``."""
    parser.add_argument(
        "model.model",
        metavar="MODEL",
        nargs="?",
        default=argparse.SUPPRESS,
        help="run this model here, instead of asking a server",
    )
    parser.add_argument("--url", help=f"address of a running server's API (default: {DEFAULT_URL})")
    parser.add_argument("--model-name", help="model to ask the server for (default: its first)")
    parser.add_argument("--api-key", help="key for the server; default: COREFW_API_KEY")
    parser.add_argument("--log-level", default="WARNING", help="of a model that runs here (default: WARNING)")
    add_config_flag(parser)
    add_plugin_flag(parser)
    add_flags(parser, ENGINE_SECTIONS)


@contextmanager
def connected(namespace: argparse.Namespace) -> Iterator[Session]:
    """Open what the flags ask for; closed with the block.

    Raises:
        ConfigError: flags that don't go together.
        TransportError: the server can't be reached.
    """
    args = UserArgs.from_namespace(namespace)
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            transport = runner.run(_open(stack, args, namespace))
            name = namespace.model_name or runner.run(first_model(transport))
            yield Session(runner, transport, name)
        finally:
            runner.run(stack.aclose())


async def _open(stack: AsyncExitStack, args: UserArgs, namespace: argparse.Namespace) -> Transport:
    if "model.model" in args.explicit:
        if namespace.url is not None:
            raise ConfigError("give either MODEL (run here) or --url (ask a server), not both")
        from corefw.cli.client.local import local_transport  # brings the engine

        return await stack.enter_async_context(local_transport(args, namespace.log_level))
    if args.explicit:
        flags = ", ".join(args.flags())
        raise ConfigError(f"{flags}: only for a model that runs here; name it as MODEL")
    from corefw.cli.client.http import HttpTransport

    transport = HttpTransport(
        base_url(namespace.url or DEFAULT_URL), api_key=namespace.api_key or env.api_key(), reuse=False
    )
    stack.push_async_callback(transport.close)
    return transport


def base_url(url: str) -> str:
    """The address below which ``/v1`` lies: users write it with or without."""
    return url.rstrip("/").removesuffix("/v1")
