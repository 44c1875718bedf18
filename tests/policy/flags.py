"""Every command's parser, as the command line builds it. ``python -m tests.policy.flags`` renews the snapshot."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
from collections.abc import Iterator

from corefw.cli.main import _COMMANDS
from corefw.cli.parser import Parser
from corefw.config.args import SECTIONS
from tests.policy.sources import ROOT

__all__ = ["RENEW", "SNAPSHOT", "described", "parsers"]

SNAPSHOT = ROOT / "tests" / "policy" / "snapshots" / "flags.txt"
RENEW = "python -m tests.policy.flags"


def parsers() -> dict[str, argparse.ArgumentParser]:
    """By command, those of its own commands included."""
    found: dict[str, argparse.ArgumentParser] = {}
    for name, module, _ in _COMMANDS:
        parser = Parser(prog=f"corefw {name}")
        importlib.import_module(module).add_arguments(parser)
        found[name] = parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                found |= {f"{name} {inner}": chosen for inner, chosen in action.choices.items()}
    return found


def described() -> list[str]:
    """A line a flag: command, names, default, choices."""
    return [line for name, parser in sorted(parsers().items()) for line in sorted(_flags(name, parser))]


def _flags(command: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        names = "/".join(action.option_strings) or action.metavar or action.dest
        choices = f" choices={','.join(map(str, action.choices))}" if action.choices else ""
        yield f"{command} {names} default={_default(action)}{choices}"


def _default(action: argparse.Action) -> object:
    section, _, name = action.dest.partition(".")
    if name:
        return next(item.default for item in dataclasses.fields(SECTIONS[section]) if item.name == name)
    return None if action.default is argparse.SUPPRESS else action.default


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(described()) + "\n", encoding="utf-8")
