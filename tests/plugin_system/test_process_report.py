from __future__ import annotations

import msgspec

from corefw.interfaces.selection import Rejected, Selection
from corefw.plugin_system.contributions import Contribution
from corefw.plugin_system.manager import PluginManager
from corefw.plugin_system.process_report import ProcessReport, ReportedPlugin, describe, summaries
from tests.plugin_system.conftest import Site


def _report(process: str, state: str) -> ProcessReport:
    plugin = ReportedPlugin(
        group="platform_plugins", name="toy", distribution="theirs", version="1", state=state, reason=f"said {process}"
    )
    return ProcessReport(process=process, plugins=[plugin], selections=[], quarantined=[])


def _summary(front_end: str, core: str) -> tuple[str, str]:
    (summary,) = summaries([_report("front_end", front_end), _report("engine_core", core)])
    return summary.state, summary.reason


def test_the_state_that_says_most_is_the_plugins() -> None:
    assert _summary("found", "active") == ("active", "said engine_core")
    assert _summary("active", "loaded") == ("active", "said front_end")
    assert _summary("active", "failed") == ("failed", "said engine_core")
    assert _summary("unused", "loaded") == ("unused", "said front_end")
    assert _summary("unavailable", "found") == ("unavailable", "said front_end")


def test_a_core_that_only_knows_that_its_parent_left_something_out_doesnt_hide_why() -> None:
    assert _summary("denied by default", "not allowed") == ("denied by default", "said front_end")


def test_a_report_crosses_a_process_border(site: Site) -> None:
    site.install("platform")
    manager = PluginManager.discover()
    manager.record(Selection("platform", "cpu", "the only one", (Rejected("toy", "no hardware"),)))
    report = describe(manager, "front_end")
    assert msgspec.convert(msgspec.msgpack.decode(msgspec.msgpack.encode(report)), ProcessReport) == report
    assert report.selections[0].rejected == {"toy": "no hardware"}
    assert {p.name: p.state for p in report.plugins if p.distribution == "corefw-sample-platform"}["toy"] == "unused"


def test_what_was_quarantined_is_told_with_hook_and_reason() -> None:
    manager = PluginManager.discover("")

    def fail() -> None:
        raise RuntimeError("no more")

    guarded = manager.guard(Contribution("watcher", "theirs", "corefw_observe", object()))
    for _ in range(3):
        guarded.run(fail)
    (item,) = describe(manager, "engine_core").quarantined
    assert (item.plugin, item.hook) == ("theirs/watcher", "corefw_observe")
    assert "no more" in item.reason
