"""Health, version, plugins."""

from __future__ import annotations

import dataclasses
from typing import Any

import corefw
from corefw.interfaces.selection import Rejected, Selection
from corefw.plugin_system.groups import GROUPS_BY_NAME
from corefw.plugin_system.manager import PluginManager
from tests.server.serving import engine_config, scripted, serving


def test_health_and_ping_are_well_while_the_engine_lives() -> None:
    with serving(scripted()) as server:
        assert server.get("/health").json() == {"status": "ok"}
        assert server.get("/ping").status_code == 200


def test_a_server_lives_though_its_engine_is_being_restarted() -> None:
    engine = scripted()
    with serving(engine) as server:
        engine.trouble = "the engine core was killed; it is being restarted"
        answer = server.get("/health")
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_away"
        assert "being restarted" in answer.json()["error"]["message"]
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
    (selection,) = report["selections"]
    assert selection.pop("process") == "front_end"
    assert selection == {
        "what": "platform",
        "chosen": "cpu",
        "reason": "the only one",
        "rejected": {"cuda": "no device"},
    }


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


def test_the_report_has_no_secrets_that_reasons_repeat() -> None:
    decision = ("model", "https://me:pass@hub.example/m", "asked with the-server-key")
    config = dataclasses.replace(engine_config(), decisions=(decision,))
    manager = PluginManager.discover("")
    manager.record(Selection("cache", "remote", "token hf_abcdefghijklmnopqrst works", (Rejected("auth", "no door"),)))
    with serving(scripted(config=config), plugins=manager, api_key=("the-server-key",)) as server:
        answer = server.get("/plugins", headers={"authorization": "Bearer the-server-key"})
    assert [text for text in ("pass@", "the-server-key", "hf_a") if text in answer.text] == []
    assert answer.json()["selections"][0]["rejected"] == {"auth": "no door"}


def test_the_report_has_the_decisions_of_configuration_and_core() -> None:
    config = dataclasses.replace(engine_config(), decisions=(("dtype", "float32", "the checkpoint's"),))
    plan = dataclasses.replace(scripted().plan, decisions=(("attention", "naive", "the only one"),))
    with serving(scripted(config=config, plan=plan)) as server:
        report = server.get("/plugins").json()
    assert report == {
        "plugins": [],
        "selections": [],
        "quarantined": [],
        "decisions": [
            {"what": "dtype", "chosen": "float32", "why": "the checkpoint's"},
            {"what": "attention", "chosen": "naive", "why": "the only one"},
        ],
        "missing_processes": {},
    }


def core_report(state: str, reason: str) -> dict[str, Any]:
    """What a core tells that has one plugin, a choice and a quarantined contribution."""
    plugin = {"group": "executors", "name": "uni", "distribution": "corefw", "version": corefw.__version__}
    return {
        "process": "engine_core",
        "plugins": [{**plugin, "state": state, "reason": reason}],
        "selections": [{"what": "executor", "chosen": "uni", "reason": reason, "rejected": {"mp": "not asked"}}],
        "quarantined": [{"plugin": "theirs/watcher", "hook": "corefw_observe", "reason": "3 failures in a row"}],
    }


def test_the_report_has_each_plugins_state_in_the_front_end_and_in_the_core() -> None:
    engine = scripted()
    engine.call_results["plugins"] = core_report("active", "the value of --executor")
    with serving(engine, plugins=PluginManager.discover("")) as server:
        report = server.get("/plugins").json()
    (executor,) = (p for p in report["plugins"] if (p["group"], p["name"]) == ("executors", "uni"))
    assert (executor["state"], executor["reason"]) == ("active", "the value of --executor")
    assert {name: fate["state"] for name, fate in executor["processes"].items()} == {
        "front_end": "found",
        "engine_core": "active",
    }
    assert [(s["process"], s["what"]) for s in report["selections"]] == [("engine_core", "executor")]
    assert [(q["process"], q["plugin"]) for q in report["quarantined"]] == [("engine_core", "theirs/watcher")]


def test_a_dead_core_leaves_the_report_with_what_it_told_last() -> None:
    engine = scripted()
    engine.call_results["plugins"] = core_report("active", "the only one")
    with serving(engine, plugins=PluginManager.discover("")) as server:
        server.in_loop(lambda: engine.die("the core was killed"))
        report = server.get("/plugins").json()
    assert report["missing_processes"] == {"engine_core": "the core was killed"}
    assert [s["what"] for s in report["selections"]] == ["executor"]
