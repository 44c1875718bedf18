"""What the documents tell users to type is what the programs take."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from corefw.cli.main import _COMMANDS, _parser
from tests.policy.flags import parsers
from tests.policy.sources import ROOT

_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_PLUGIN_PAGES = sorted((ROOT / "docs" / "plugins").glob("*.md"))
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What has a dot is of a plugin's own section: ``--house.limit``.
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*(?![a-z0-9-]|\.[a-z])")
_SHELL = {"", "sh", "bash", "shell", "console"}
_MODULES = {name: module for name, module, _ in _COMMANDS}
# Flags of other programs that the documents speak of: vLLM, torchrun, docker, Ray.
_OTHERS = {
    "--disable-hybrid-kv-cache-manager",
    "--nnodes",
    "--nproc-per-node",
    "--num-cpus",
    "--num-gpus",
    "--shm-size",
}


def _commands() -> Iterator[tuple[str, list[str]]]:
    """Page and words of each command line. Where lines begin with ``$``, the others are output."""
    for page in [*_PAGES, *_PLUGIN_PAGES]:
        for kind, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
            if kind not in _SHELL:
                continue
            lines = text.replace("\\\n", " ").splitlines()
            prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
            for line in prompted or lines:
                if re.search(r"\b(corefw|make) ", line):
                    yield from ((page.name, words) for words in _simple_commands(line))


def _simple_commands(line: str) -> Iterator[list[str]]:
    words: list[str] = []
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    for word in [*lexer, ";"]:
        if set(word) <= set("|&;()"):
            if words and Path(words[0]).name in ("corefw", "make"):
                yield words
            words = []
        else:
            words.append(word)


_COMMAND_LINES = list(_commands())


def test_command_lines_are_found() -> None:
    assert {Path(words[0]).name for _, words in _COMMAND_LINES} == {"corefw", "make"}
    assert len(_COMMAND_LINES) > 10


@pytest.mark.parametrize(("page", "words"), _COMMAND_LINES, ids=lambda value: value if isinstance(value, str) else None)
def test_a_command_line_is_accepted(
    page: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if words[0] == "make":
        _check_make(words[1:])
        return
    (tmp_path / "corefw.yaml").write_text("port: 8001\n")
    monkeypatch.chdir(tmp_path)
    words = words[: next((i for i, word in enumerate(words) if word in (">", ">>", "<")), len(words))]
    name = next((word for word in words[1:] if word in _MODULES), None)
    assert name is not None, f"{page}: no such command: {' '.join(words)}"
    _parser(name, importlib.import_module(_MODULES[name])).parse_args(words[1:])


def _check_make(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in words:
        variable, is_variable, value = word.partition("=")
        pattern = rf"^{variable} *\?=" if is_variable else rf"^{re.escape(word)}:"
        assert re.search(pattern, makefile, re.MULTILINE) or (variable == "ARGS" and "$(ARGS)" in makefile), word
        if variable == "ARGS":
            parsers()["serve"].parse_args(shlex.split(value))


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
def test_python_in_a_page_compiles(page: Path) -> None:
    for kind, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "python":
            assert compile(text, str(page), "exec") is not None


def _flags_of_scripts() -> set[str]:
    scripts = [path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").rglob("*.py")]
    return {flag for text in scripts for flag in re.findall(r"\"(--[a-z][a-z-]*)\"", text)}


@pytest.mark.parametrize("page", [*_PAGES, *_PLUGIN_PAGES], ids=lambda page: page.name)
def test_a_flag_that_a_page_names_exists(page: Path) -> None:
    known = {text for parser in parsers().values() for text in parser._option_string_actions} | _OTHERS
    known |= _flags_of_scripts()
    quoted = re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))
    named = {flag for text in quoted for flag in _FLAG.findall(text)}
    assert sorted(named - known - {"--help", "--version"}) == []
