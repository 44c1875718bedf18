"""Health, version, plugins."""

from __future__ import annotations

import corefw
from corefw.interfaces.selection import Rejected, Selection
from corefw.plugin_system.manager import PluginManager
from tests.server.serving import scripted, serving


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


def test_the_report_is_empty_without_a_manager() -> None:
    with serving(scripted()) as server:
        assert server.get("/plugins").json() == {"plugins": [], "selections": []}
