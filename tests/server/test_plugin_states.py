"""What a server tells of plugins besides its report: the log of the start, and figures."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from corefw.plugin_system.manager import PluginManager
from corefw.server.plugin_states import PluginStates
from corefw.testing.scripted_engine import ScriptedEngine
from tests.server.serving import scripted, serving

THEIRS = {"group": "general_plugins", "distribution": "theirs", "version": "1.0"}


def told(*plugins: tuple[str, str], num_quarantined: int = 0) -> dict[str, Any]:
    """A core's report: name and state a plugin."""
    item = {"plugin": "theirs/watcher", "hook": "corefw_observe", "reason": "3 failures in a row"}
    return {
        "process": "engine_core",
        "plugins": [{**THEIRS, "name": name, "state": state, "reason": "because"} for name, state in plugins],
        "selections": [],
        "quarantined": [item] * num_quarantined,
    }


def engine_telling(report: dict[str, Any]) -> ScriptedEngine:
    engine = scripted()
    engine.call_results["plugins"] = report
    return engine


def states_of(report: dict[str, Any], plugins: PluginManager | None = None) -> PluginStates:
    engine: Any = engine_telling(report)
    states = PluginStates(plugins, engine)
    asyncio.run(states.refresh())
    return states


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_the_log_tells_what_serves_what_failed_and_the_rest_only_to_those_who_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    states = states_of(
        told(("good", "loaded"), ("bad", "failed"), ("other", "unavailable")), PluginManager.discover("")
    )
    with caplog.at_level(logging.DEBUG, "corefw"):
        caplog.clear()
        states.log()
    assert lines(caplog, logging.INFO) == ["plugin theirs/good 1.0 (general_plugins): loaded in engine_core: because"]
    assert lines(caplog, logging.WARNING) == ["plugin theirs/bad 1.0 (general_plugins): failed in engine_core: because"]
    assert any("theirs/other" in line for line in lines(caplog, logging.DEBUG))
    assert any("corefw/cpu" in line for line in lines(caplog, logging.DEBUG))


def test_a_hundred_plugins_dont_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    states = states_of(told(*((f"p{i}", "loaded") for i in range(100))))
    with caplog.at_level(logging.INFO, "corefw"):
        states.log()
    assert len(lines(caplog, logging.INFO)) == 21
    assert lines(caplog, logging.INFO)[-1] == "and 80 more plugins; GET /plugins lists them all"


def test_the_number_of_series_is_bounded() -> None:
    assert len(states_of(told(*((f"p{i}", "loaded") for i in range(700)))).figures().plugins) == 500


def test_a_core_that_doesnt_answer_is_said_to() -> None:
    class Busy:
        async def call(self, method: str, *args: Any) -> Any:
            await asyncio.sleep(60)

    busy: Any = Busy()
    states = PluginStates(None, busy, answer_limit_s=0.01)
    asyncio.run(states.refresh())
    assert states.core_problem == "it didn't answer within 0.01 s"
    assert states.reports() == ()


def _scraped(get: Callable[[], str], wanted: str) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if wanted in get().splitlines():
            return True
        time.sleep(0.02)
    return False


def test_the_metrics_have_states_and_what_was_quarantined_since() -> None:
    engine = engine_telling(told(("good", "active")))
    with serving(engine) as server:
        row = 'corefw:plugin_info{distribution="theirs",group="general_plugins",model_name="demo",name="good",state='
        first = server.get("/metrics").text.splitlines()
        assert f'{row}"active",version="1.0"}} 1.0' in first
        assert 'corefw:plugin_contributions_quarantined{model_name="demo"} 0.0' in first
        server.in_loop(lambda: engine.call_results.update(plugins=told(("good", "failed"), num_quarantined=2)))
        wanted = 'corefw:plugin_contributions_quarantined{model_name="demo"} 2.0'
        assert _scraped(lambda: server.get("/metrics").text, wanted)
        assert f'{row}"failed",version="1.0"}} 1.0' in server.get("/metrics").text.splitlines()
