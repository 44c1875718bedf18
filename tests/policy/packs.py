"""The packs' files, as the policy tests read them."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.policy.sources import ROOT, parse

__all__ = ["PACKS", "imported_modules", "package_of", "project_of", "python_files"]

PACKS = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))


def project_of(folder: Path) -> dict[str, Any]:
    """The ``project`` table of a folder's pyproject.toml."""
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def package_of(pack: Path) -> str:
    """Import name of a pack."""
    return f"corefw_{pack.name}"


def python_files(folder: Path) -> list[Path]:
    """Every Python file below."""
    return sorted(folder.rglob("*.py"))


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every module that a file imports, type checking's included."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            inside = [f"{module}.{alias.name}" for alias in node.names]
            # ``from corefw import sdk`` names a room, ``from corefw.errors import ConfigError`` a thing in one.
            yield from ((node.lineno, name) for name in (inside if module == "corefw" else [module]))
