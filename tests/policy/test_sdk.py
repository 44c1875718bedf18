"""The facade's public names are frozen: third parties build on them."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import corefw.sdk
from tests.policy.sources import CORE, ROOT, core_modules, module_name, parse

SNAPSHOT = ROOT / "tests" / "policy" / "snapshots" / "sdk.txt"
_MODULES = [path for path in core_modules() if path.parent == CORE / "sdk" and path.name != "__init__.py"]
_NAMES = [module_name(path) for path in _MODULES]


def test_the_public_names_are_those_of_the_snapshot() -> None:
    names = sorted(f"{name}.{public}" for name in _NAMES for public in importlib.import_module(name).__all__)
    assert names == SNAPSHOT.read_text(encoding="utf-8").splitlines(), (
        "a name that is added goes into the snapshot and CHANGELOG.md; one that is taken away breaks packs"
    )


@pytest.mark.parametrize("path", _MODULES, ids=module_name)
def test_a_module_offers_what_it_imports_and_defines(path: Path) -> None:
    module = importlib.import_module(module_name(path))
    found: set[str] = set()
    for node in parse(path).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("corefw."):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    assert found == set(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


def test_every_module_is_listed_for_its_readers() -> None:
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    assert [name for name in _NAMES if f"`{name}`" not in page] == []
    assert [name for name in _NAMES if f"``{name}``" not in str(corefw.sdk.__doc__)] == []
