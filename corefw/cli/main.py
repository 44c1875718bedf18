"""Entry point of the ``corefw`` command. Imports no torch and nothing heavy before a command is chosen."""

from __future__ import annotations

import faulthandler
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from corefw import __version__
from corefw.cli.parser import Parser
from corefw.errors import CorefwError

__all__ = ["main"]

# Name, module and help. A module has ``add_arguments(parser)`` and ``run(namespace)``; it is imported when its command
# is the one that was typed, so that no command waits for another's imports.
_COMMANDS = (
    ("serve", "corefw.cli.serve", "serve a model over the OpenAI-compatible HTTP API"),
    ("chat", "corefw.cli.chat", "talk to a model here or on a server"),
    ("complete", "corefw.cli.complete", "continue texts, with a model here or on a server"),
    ("generate", "corefw.cli.generate", "continue many prompts offline; JSON lines out"),
    ("run-batch", "corefw.cli.run_batch", "answer a file of requests in the OpenAI batch format"),
    ("bench", "corefw.cli.bench.command", "measure a server or the engine itself"),
    ("plugins", "corefw.cli.plugins.command", "plugins: which there are, their state and why"),
    ("explain", "corefw.cli.explain", "tell what a server would choose, and why nothing else"),
    ("diagnose", "corefw.cli.diagnose", "find the layer at fault where ranks can't talk to one another"),
    ("collect-env", "corefw.cli.collect_env", "print versions, hardware and plugins, for a report"),
)
_MODULES = {name: module for name, module, _ in _COMMANDS}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status. An error of corefw's own is one line on standard error."""
    if not faulthandler.is_enabled():
        faulthandler.enable(2)  # a plugin's native code that crashes leaves the place where it did
    words = list(sys.argv[1:] if argv is None else argv)
    name = next((word for word in words if word in _MODULES), None)
    module = None if name is None else importlib.import_module(_MODULES[name])
    parser = _parser(name, module)
    namespace = parser.parse_args(words)
    if namespace.command is None or module is None:
        parser.print_help()
        return 2
    try:
        status: int = module.run(namespace)
    except CorefwError as error:
        print(f"corefw {namespace.command}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # who reads our output has seen enough, as in `corefw … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _parser(name: str | None, module: ModuleType | None) -> Parser:
    parser = Parser(prog="corefw", description="A plugin-first inference engine for large language models.")
    parser.add_argument("--version", action="version", version=f"corefw {__version__}")
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")
    for command, _, text in _COMMANDS:
        subparser = commands.add_parser(command, help=text)
        if module is not None and command == name:
            module.add_arguments(subparser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
