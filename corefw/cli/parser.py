"""A parser whose errors are one sentence with the nearest flag, like all of corefw's."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

__all__ = ["Parser"]

_USAGE_ERROR = 2


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations and without a page of usage before each error."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**{**keywords, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        """Print the sentence and where help is; exit with 2."""
        print(f"{self.prog}: error: {message}; see {self.prog} --help", file=sys.stderr)
        sys.exit(_USAGE_ERROR)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None):  # type: ignore[no-untyped-def, override]  # overloaded in typeshed
        """Heed ``--config`` and plugins' flags, and leave nothing over: an unknown flag is this parser's error."""
        words = list(sys.argv[1:] if args is None else args)
        if "--config" in self._option_string_actions:
            self._apply_config(words)
        taken: dict[str, object] = {}
        if "--PLUGIN.FIELD" in self._option_string_actions:
            words, taken = self._take_plugin_flags(words)
        parsed, rest = super().parse_known_args(words, namespace)
        vars(parsed).update(taken)
        if rest:
            self.error(f"unknown: {' '.join(rest)[:200]}{self._hint(rest[0])}")
        return parsed, rest

    def _apply_config(self, words: Sequence[str]) -> None:
        from corefw.cli.config_file import apply_config_file  # here: a page of help needs none of it
        from corefw.errors import ConfigError

        try:
            apply_config_file(self, words)
        except ConfigError as error:
            self.error(str(error))

    def _take_plugin_flags(self, words: Sequence[str]) -> tuple[list[str], dict[str, object]]:
        from corefw.cli.plugin_flags import list_plugin_flags, take_plugin_flags
        from corefw.errors import ConfigError

        if {"-h", "--help"} & set(words):
            list_plugin_flags(self, words)
        try:
            rest, taken = take_plugin_flags(words)
        except ConfigError as error:
            self.error(str(error))
        return rest, dict(taken)

    def _hint(self, word: str) -> str:
        near = difflib.get_close_matches(word.partition("=")[0], self._option_string_actions, n=1)
        return f"; did you mean {near[0]}?" if near else ""
