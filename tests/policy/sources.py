"""The repository's files, as the policy tests read them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["CORE", "ROOT", "core_modules", "functions", "module_name", "parse", "text_files"]

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "corefw"
_FOLDERS = ("corefw", "tests", "plugins", "docs", "scripts", "benchmarks", ".ci")
_SUFFIXES = {".py", ".md", ".toml", ".txt", ".cfg", ".yaml", ".yml", ".json", ".cpp", ".h", ".html", ".sh", ""}


def core_modules() -> list[Path]:
    """Every Python file of the core distribution."""
    return sorted(CORE.rglob("*.py"))


def module_name(path: Path) -> str:
    """Dotted name of a file of the core."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def text_files() -> Iterator[Path]:
    """Every text file that belongs to the project."""
    for path in ROOT.iterdir():  # .git is a file in a linked worktree
        if path.is_file() and path.suffix in _SUFFIXES and path.name != ".git":
            yield path
    for folder in _FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            inside = path.relative_to(ROOT / folder).parts
            is_cache = any(part == "__pycache__" or part.startswith(".") for part in inside[:-1])
            if path.is_file() and path.suffix in _SUFFIXES and not is_cache:
                yield path


@cache
def parse(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a file."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
