"""Flags that steer generation, for every command that generates."""

from __future__ import annotations

import argparse
from typing import Any

__all__ = ["add_sampling_flags", "sampling_fields"]

_PREFIX = "sampling:"


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Add them; one that isn't given leaves no trace."""
    group = parser.add_argument_group("sampling", "what isn't given is the model's own default")
    floats = {
        "temperature": "0 takes the most likely token",
        "top-p": "keep the most likely tokens with this mass",
        "min-p": "drop tokens less likely than this share of the most likely one",
    }
    integers = {
        "top-k": "keep this many most likely tokens; 0 keeps all",
        "max-tokens": "longest output in tokens",
        "min-tokens": "shortest output in tokens",
        "sampling-seed": "makes the output reproducible",
    }
    for kind, options in ((float, floats), (int, integers)):
        for name, text in options.items():
            metavar = kind.__name__.upper()
            group.add_argument(
                f"--{name}", type=kind, dest=_dest(name), metavar=metavar, default=argparse.SUPPRESS, help=text
            )
    group.add_argument(
        "--stop", action="append", dest=_dest("stop"), default=argparse.SUPPRESS, metavar="TEXT",
        help="end before this text; may be given more than once",
    )  # fmt: skip
    group.add_argument(
        "--ignore-eos", action="store_true", dest=_dest("ignore_eos"), default=argparse.SUPPRESS,
        help="don't stop at the model's end tokens",
    )  # fmt: skip


def sampling_fields(namespace: argparse.Namespace) -> dict[str, Any]:
    """What was given, by the names that requests use."""
    values = vars(namespace).items()
    return {key.removeprefix(_PREFIX): value for key, value in values if key.startswith(_PREFIX)}


def _dest(name: str) -> str:
    # --seed is the engine's; requests call theirs seed.
    return _PREFIX + name.removeprefix("sampling-").replace("-", "_")
