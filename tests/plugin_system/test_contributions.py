from __future__ import annotations

import logging
import sys
from typing import Any

import pytest

from corefw.errors import PluginError
from corefw.interfaces.hooks.process import corefw_loaded
from corefw.plugin_system.contributions import MAX_FAILURES, Contribution, Guarded
from corefw.plugin_system.manager import PluginManager
from tests.plugin_system.conftest import Site


def failing() -> Any:
    raise RuntimeError("out of luck")


def guarded(value: Any = None) -> Guarded[Any]:
    return PluginManager.discover("").guard(Contribution("mine", "my-dist", "corefw_loaded", value))


def test_a_failing_call_gives_none_and_is_logged_with_the_plugins_name(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert guarded().run(failing) is None
    assert "my-dist/mine" in caplog.text
    assert "out of luck" in caplog.text


def test_a_contribution_that_keeps_failing_is_not_called_any_more() -> None:
    calls = []

    def count() -> None:
        calls.append(1)
        failing()

    guard = guarded()
    for _ in range(MAX_FAILURES + 2):
        guard.run(count)
    assert len(calls) == MAX_FAILURES
    assert guard.quarantined is not None
    assert "RuntimeError: out of luck" in guard.quarantined


def test_a_call_that_succeeds_forgets_the_failures_before_it() -> None:
    failures = iter([True, True, False] * MAX_FAILURES)

    def sometimes() -> int:
        return failing() or 0 if next(failures) else 7

    guard = guarded()
    assert [guard.run(sometimes) for _ in range(3 * MAX_FAILURES)] == [None, None, 7] * MAX_FAILURES


def test_a_method_that_works_does_not_make_up_for_one_that_keeps_failing() -> None:
    def working() -> None:
        return

    guard = guarded()
    for _ in range(MAX_FAILURES):
        guard.run(failing)
        guard.run(working)
    assert guard.quarantined is not None


def test_the_manager_knows_what_is_quarantined() -> None:
    manager = PluginManager.discover("")
    good, bad = (manager.guard(Contribution(name, "my-dist", "corefw_loaded", None)) for name in ("good", "bad"))
    for _ in range(MAX_FAILURES):
        bad.run(failing)
        good.run(lambda: None)
    assert manager.quarantined == (bad,)


def manager_with(site: Site, monkeypatch: pytest.MonkeyPatch, body: str) -> PluginManager:
    """A manager that has one hook module, whose hook ``corefw_loaded`` does that, loaded."""
    monkeypatch.delitem(sys.modules, "corefw_made_here", raising=False)
    source = f"from corefw.sdk.plugins import hookimpl\n\n\n@hookimpl\ndef corefw_loaded(process):\n    {body}\n"
    (site.path / "corefw_made_here.py").write_text(source, encoding="utf-8")
    site.metadata("made-here", "1.0", {"corefw.general_plugins": {"made_here": "corefw_made_here"}})
    manager = PluginManager.discover()
    manager.load_general("cli")
    return manager


def test_what_hooks_return_is_collected_with_its_owner(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = manager_with(site, monkeypatch, "return None if process == 'cli' else process")
    assert manager.collect(str, corefw_loaded, "worker") == (
        Contribution("made_here", "made-here", "corefw_loaded", "worker"),
    )
    assert manager.collect(str, corefw_loaded, "cli") == ()


def test_a_hook_that_returns_the_wrong_type_makes_its_plugin_fail(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = manager_with(site, monkeypatch, "return None if process == 'cli' else 3")
    assert manager.collect(str, corefw_loaded, "worker") == ()
    outcomes = [manager.outcome(v.plugin) for v in manager.verdicts if v.plugin.name == "made_here"]
    assert [o.reason for o in outcomes if o] == ["hook corefw_loaded raised TypeError: it returned int, not str"]


def test_a_named_plugin_whose_hook_fails_stops_the_start(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "+made_here")
    with pytest.raises(PluginError, match=r"made_here.*hook corefw_loaded raised RuntimeError: out of luck"):
        manager_with(site, monkeypatch, "raise RuntimeError('out of luck')")
