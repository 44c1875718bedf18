"""Tests are tests: each says what it expects."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.policy.sources import ROOT, parse

_CHECKERS = ("assert_", "check_", "expect_", "verify_")


def _tests(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node


def _expects(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        return True
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in {"raises", "warns"} or name.lstrip("_").startswith(_CHECKERS)


def test_every_test_expects_something() -> None:
    files = [path for folder in ("tests", "plugins") for path in (ROOT / folder).rglob("test_*.py")]
    idle = [
        f"{path.relative_to(ROOT)}:{test.lineno}: {test.name}"
        for path in files
        for test in _tests(path)
        if not any(_expects(node) for node in ast.walk(test))
    ]
    assert idle == []
