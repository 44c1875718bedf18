from __future__ import annotations

import pytest

from corefw.interfaces.selection import Rejected, Selection
from corefw.plugin_system.manager import PluginManager
from corefw.plugin_system.report import Row, explain, format_rows, report, survey
from corefw.plugin_system.verdicts import State
from tests.plugin_system.conftest import Site


def _states(rows: tuple[Row, ...], group: str) -> dict[str, State]:
    return {row.name: row.state for row in rows if row.group == group}


def test_a_survey_shows_states_and_lists_problems_instead_of_raising(site: Site) -> None:
    site.install("endpoint")
    site.install("endpoint", distribution="corefw-sample-twin")
    assert _states(survey().rows, "endpoint_plugins")["echo"] is State.DENIED
    problems = survey("echo,ecko").problems
    assert len(problems) == 2
    assert "ecko" in problems[0]
    assert "corefw-sample-twin/echo" in problems[1]


def test_a_survey_imports_no_plugin_and_no_torch(site: Site) -> None:
    site.install("broken")
    code = (
        "import sys; from corefw.plugin_system.report import *; print(len(format_rows(survey().rows)) > 100,"
        "'torch' in sys.modules, any(m.startswith(('corefw.builtins.', 'corefw_sample')) for m in sys.modules))"
    )
    assert site.output(code) == "True False False"


def test_a_report_follows_loading_and_choices(site: Site) -> None:
    site.install("platform")
    site.install("broken")
    manager = PluginManager.discover()
    assert set(_states(report(manager), "platform_plugins").values()) == {State.FOUND}
    manager.load_all("platform_plugins")
    manager.record(Selection("platform", "cpu", "the only one", (Rejected("toy", "toys have no hardware"),)))
    states = _states(report(manager), "platform_plugins")
    assert states["cpu"] is State.ACTIVE
    assert states["toy"] is State.UNUSED
    assert states["toy_by_path"] is State.LOADED
    assert states["absent"] is State.UNAVAILABLE
    assert states["import_fails"] is State.FAILED
    reasons = {row.name: row.reason for row in report(manager)}
    assert reasons["toy"] == "toys have no hardware"
    assert reasons["absent_with_reason"] == "no toy driver on this machine"


def test_a_choice_among_several_of_a_group_makes_each_winner_active() -> None:
    manager = PluginManager.discover("")
    manager.record(Selection("op rms_norm", "torch", "the only one"))
    assert _states(report(manager), "op_providers")["torch"] is State.ACTIVE
    assert _states(report(manager), "attention_backends")["torch"] is State.FOUND


def test_rows_line_up_under_their_heading() -> None:
    lines = format_rows(survey("").rows).splitlines()
    column = lines[0].index("DISTRIBUTION")
    assert lines[0].startswith("GROUP")
    assert all(line[column:].startswith("corefw ") for line in lines[1:] if " corefw " in line)
    assert len(lines) == 1 + len(survey("").rows)


@pytest.mark.parametrize("wanted", ["platform: cpu (the first that can)", "  not npu: no driver"])
def test_an_explanation_has_the_winner_and_every_reason(wanted: str) -> None:
    text = explain([Selection("platform", "cpu", "the first that can", (Rejected("npu", "no driver"),))])
    assert wanted in text.splitlines()
