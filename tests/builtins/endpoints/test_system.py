"""Health, version, plugins."""

from __future__ import annotations

import dataclasses

import corefw
from corefw.interfaces.selection import Rejected, Selection
from corefw.plugin_system.groups import GROUPS_BY_NAME
from corefw.plugin_system.manager import PluginManager
from tests.server.serving import engine_config, scripted, serving


def test_health_and_ping_are_well_while_the_engine_lives() -> None:
    with serving(scripted()) as server:
        assert server.get("/health").json() == {"status": "ok"}
        assert server.get("/ping").status_code == 200


def test_health_says_why_the_engine_is_dead() -> None:
    engine = scripted()
    with serving(engine) as server:
        server.in_loop(lambda: engine.die("the core was killed"))
        for path in ("/health", "/ping"):
            answer = server.get(path)
            assert answer.status_code == 503
            assert answer.json()["error"]["message"] == "the core was killed"


def test_the_version_is_that_of_the_package() -> None:
    with serving(scripted()) as server:
        assert server.get("/version").json() == {"version": corefw.__version__}


def test_the_report_lists_plugins_with_states_and_choices_with_reasons() -> None:
    manager = PluginManager.discover("")
    manager.get("endpoint_plugins", "system")
    manager.record(Selection("platform", "cpu", "the only one", (Rejected("cuda", "no device"),)))
    with serving(scripted(), plugins=manager) as server:
        report = server.get("/plugins").json()
    states = {(plugin["group"], plugin["name"]): plugin["state"] for plugin in report["plugins"]}
    assert states["endpoint_plugins", "system"] == "loaded"
    assert states["endpoint_plugins", "openai_chat"] == "found"
    assert all(plugin["reason"] for plugin in report["plugins"])
    assert report["selections"] == [
        {"what": "platform", "chosen": "cpu", "reason": "the only one", "rejected": {"cuda": "no device"}}
    ]


def test_the_report_tells_which_plugins_are_in_use() -> None:
    manager = PluginManager.discover("")
    group = GROUPS_BY_NAME["platform_plugins"]
    first, second = manager.names("platform_plugins")[0], "somebody_else"
    manager.record(Selection(group.what, first, "asked first", (Rejected(second, "no device"),)))
    with serving(scripted(), plugins=manager) as server:
        report = server.get("/plugins").json()
    rows = {(plugin["group"], plugin["name"]): plugin for plugin in report["plugins"]}
    assert rows["platform_plugins", first]["state"] == "active"
    assert rows["platform_plugins", first]["reason"] == "asked first"


def test_the_report_has_the_decisions_of_configuration_and_core() -> None:
    config = dataclasses.replace(engine_config(), decisions=(("dtype", "float32", "the checkpoint's"),))
    plan = dataclasses.replace(scripted().plan, decisions=(("attention", "naive", "the only one"),))
    with serving(scripted(config=config, plan=plan)) as server:
        report = server.get("/plugins").json()
    assert report == {
        "plugins": [],
        "selections": [],
        "decisions": [
            {"what": "dtype", "chosen": "float32", "why": "the checkpoint's"},
            {"what": "attention", "chosen": "naive", "why": "the only one"},
        ],
    }
