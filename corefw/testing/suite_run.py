"""Runs conformance suites without pytest, and finds those that a distribution's own tests derive."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from unittest import SkipTest

from corefw.testing.suite import Suite

__all__ = ["Case", "Result", "derived_suites", "run_suite"]

_PREFIX = "test_"


class Result(StrEnum):
    """What came of a case."""

    HOLDS = "holds"
    FAILS = "fails"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Case:
    """One case of a suite.

    Attributes:
        what: the sentence that the case's name is.
        result: what came of it.
        reason: why it fails, or wasn't checked.
        where: file and line where it fails.
    """

    what: str
    result: Result
    reason: str = ""
    where: str = ""


def run_suite(suite: type[Suite], only: Collection[str] | None = None) -> Iterator[Case]:
    """Run the cases of a suite that has its plugin, in the order in which they are written.

    Args:
        only: the sentences of those to run; None for all.
    """
    for name in _case_names(suite):
        what = name.removeprefix(_PREFIX).replace("_", " ")
        if only is not None and what not in only:
            continue
        try:
            getattr(suite(), name)()
        except SkipTest as left_out:
            yield Case(what, Result.NOT_CHECKED, str(left_out))
        except Exception as error:  # the plugin border: whatever it raises is a finding
            yield Case(what, Result.FAILS, _reason(error), _place(error))
        else:
            yield Case(what, Result.HOLDS)


def derived_suites(folder: Path) -> tuple[list[type[Suite]], list[str]]:
    """The suites with a plugin that test files below ``folder`` define, and why some files couldn't be read."""
    suites: list[type[Suite]] = []
    problems: list[str] = []
    for path in sorted(folder.rglob("test_*.py")):
        try:
            module = _imported(path)
        except Exception as error:
            problems.append(f"{path.name} can't be imported: {type(error).__name__}: {error}")
            continue
        own = (value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Suite))
        suites += [suite for suite in own if suite.__module__ == module.__name__ and hasattr(suite, "plugin")]
    return suites, problems


def _case_names(suite: type[Suite]) -> list[str]:
    """Bases first."""
    names: dict[str, None] = {}
    for owner in reversed(suite.__mro__):
        names |= dict.fromkeys(name for name in vars(owner) if name.startswith(_PREFIX))
    return [name for name in names if callable(getattr(suite, name))]


def _imported(path: Path) -> ModuleType:
    name = f"corefw_checked_{path.stem}_{abs(hash(path))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _reason(error: Exception) -> str:
    text = str(error).strip()
    if isinstance(error, AssertionError):
        return text or f"not so: {_line(error)}"
    return f"{type(error).__name__}: {text}"


def _line(error: Exception) -> str:
    return traceback.extract_tb(error.__traceback__)[-1].line or ""


def _place(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"
