"""Tests are tests: each says what it expects, itself or through a function of ours that asserts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.policy.sources import ROOT, functions


def _test_files() -> list[Path]:
    return [path for folder in ("tests", "plugins") for path in (ROOT / folder).rglob("*.py")]


def _tests(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (function for function in functions(path) if function.name.startswith("test_"))


def _called(node: ast.AST) -> set[str]:
    """Names of what is called in a piece of code."""
    called = (call.func for call in ast.walk(node) if isinstance(call, ast.Call))
    return {f.attr if isinstance(f, ast.Attribute) else f.id for f in called if isinstance(f, ast.Attribute | ast.Name)}


def expects(node: ast.AST, checkers: frozenset[str] = frozenset()) -> bool:
    """Whether code asserts, names an error it wants, or calls one of ``checkers``."""
    called = _called(node)
    asserts = any(isinstance(part, ast.Assert) for part in ast.walk(node))
    return (
        asserts
        or bool(called & ({"raises", "warns", "opcheck"} | checkers))
        or any(n.startswith("assert_") for n in called)
    )


def _checkers() -> frozenset[str]:
    """Names of functions beside the tests that assert, directly or through one another."""
    files = [*_test_files(), *(ROOT / "corefw" / "testing").rglob("*.py")]
    beside = [function for path in files for function in functions(path) if not function.name.startswith("test_")]
    known = frozenset(function.name for function in beside if expects(function))
    calls = [(function.name, _called(function)) for function in beside]
    while True:
        found = known | {name for name, called in calls if called & known}
        if found == known:
            return known
        known = found


def test_every_test_expects_something() -> None:
    checkers = _checkers()
    idle = [
        f"{path.relative_to(ROOT)}:{test.lineno}: {test.name}"
        for path in _test_files()
        if path.name.startswith("test_")
        for test in _tests(path)
        if not expects(test, checkers)
    ]
    assert idle == []


def test_a_bare_call_is_no_expectation() -> None:
    assert not expects(ast.parse("run(engine)"))
    assert expects(ast.parse("run(engine)"), frozenset({"run"}))
