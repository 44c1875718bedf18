"""Every hook is documented, and implemented by a real distribution."""

from __future__ import annotations

import importlib.util
import inspect
from types import ModuleType

import pytest

from corefw.plugin_system.hooks import HOOKS
from tests.policy.sources import ROOT

_SCRIPT = ROOT / "scripts" / "write_hook_pages.py"


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_hook_pages", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_that_of_the_specifications(pages: ModuleType) -> None:
    assert pages.PAGE.read_text(encoding="utf-8") == pages.page(), "run python scripts/write_hook_pages.py"


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_says_what_when_and_where(name: str) -> None:
    text = inspect.cleandoc(HOOKS[name].__doc__ or "")
    assert "Called " in text, "say when, and in which process"
    parameters = [p for p in inspect.signature(HOOKS[name]).parameters if f"{p}: " not in text and f", {p}" not in text]
    assert parameters == []
    assert HOOKS[name].__annotations__["return"] == "None" or "Returns:" in text


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_is_used_by_a_real_distribution(pages: ModuleType, name: str) -> None:
    assert [sample for sample in pages.samples_with(name) if not sample.endswith("broken")]
    assert f"### {name}\n" in pages.PAGE.read_text(encoding="utf-8")
