"""What the doctor finds, each once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from corefw.errors import ConfigError
from corefw.plugin_system.discovery import find_plugins
from corefw.plugin_system.doctor import Examination, examine
from corefw.plugin_system.findings import Finding, Kind
from corefw.plugin_system.metadata_check import check_project
from corefw.plugin_system.process_check import check_processes
from corefw.plugin_system.process_report import Fate, PluginSummary
from tests.plugin_system.conftest import Site

Write = Callable[[str, str], None]
GOOD = """
from corefw.sdk.plugins import hookimpl

@hookimpl
def corefw_loaded(process):
    pass
"""
GENERAL = {"corefw.general_plugins": {"x": "corefw_sample_x"}}


@pytest.fixture
def child_sees(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site that children see as well."""
    monkeypatch.setenv("PYTHONPATH", str(site.path))
    return site


def of_kind(examination: Examination, kind: Kind) -> list[Finding]:
    return [finding for finding in examination.findings if finding.kind is kind]


def only(examination: Examination) -> Finding:
    (finding,) = examination.findings
    return finding


def test_a_plugin_whose_package_isnt_there_isnt_installed(child_sees: Site) -> None:
    child_sees.metadata("corefw-sample-x", "1.0", GENERAL)
    found = only(examine("corefw-sample-x/*", 30))
    assert found.kind is Kind.NOT_INSTALLED
    assert "corefw_sample_x, which isn't installed" in found.what
    assert "corefw-sample-x 1.0" in found.where
    assert found.remedy == "reinstall corefw-sample-x"


def test_an_egg_info_that_was_left_behind_is_to_be_deleted(child_sees: Site) -> None:
    child_sees.metadata("corefw-sample-x", "1.0", GENERAL, suffix="egg-info")
    assert "delete" in only(examine("corefw-sample-x/*", 30)).remedy
    assert "corefw_sample_x.egg-info" in only(examine("corefw-sample-x/*", 30)).remedy


def test_metadata_that_lies_twice_and_differs_is_stale(child_sees: Site, write_module: Write) -> None:
    write_module("corefw_sample_x", GOOD)
    child_sees.metadata("corefw-sample-x", "1.0", GENERAL)
    child_sees.metadata("corefw-sample-x", "0.9", GENERAL, suffix="egg-info")
    found = only(examine("corefw-sample-x/*", 30))
    assert found.kind is Kind.STALE_METADATA
    assert "1.0 counts and 0.9 is passed over" in found.what
    assert "dist-info" in found.where
    assert "egg-info" in found.where


def test_metadata_that_lies_twice_and_is_alike_is_an_editable_install(child_sees: Site, write_module: Write) -> None:
    write_module("corefw_sample_x", GOOD)
    child_sees.metadata("corefw-sample-x", "1.0", GENERAL)
    child_sees.metadata("corefw-sample-x", "1.0", GENERAL, suffix="egg-info")
    assert examine("corefw-sample-x/*", 30).findings == ()


@pytest.mark.parametrize("group", ["corefw.platform_plugin", "corefw_platform_plugins", "corefw.platfrom_plugins"])
def test_a_group_that_nobody_reads_is_told_with_the_nearest(child_sees: Site, group: str) -> None:
    child_sees.metadata("corefw-sample-x", "1.0", {group: {"x": "json:loads"}})
    (found,) = of_kind(examine("", 30), Kind.WRONG_GROUP)
    assert repr(group) in found.what
    assert "did you mean corefw.platform_plugins" in found.remedy


@pytest.mark.parametrize(
    ("group", "name", "value", "said"),
    [
        ("corefw.api_versions", "platform_plugins", "v1", "a group in which the distribution has no plugin"),
        ("corefw.priorities", "other", "p10", "which is no plugin of the distribution"),
        ("corefw.priorities", "x", "first", "says 'first' for 'x', so it goes as if nothing were said"),
        ("corefw.priorities", "x", "p0", "says 'p0'"),
    ],
)
def test_a_declaration_that_says_nothing_is_told(
    child_sees: Site, group: str, name: str, value: str, said: str
) -> None:
    child_sees.metadata("corefw-sample-x", "1.0", {**GENERAL, group: {name: value}})
    (found,) = of_kind(examine("", 30), Kind.WRONG_DECLARATION)
    assert said in found.what


def test_an_import_error_has_its_cause_and_its_place(child_sees: Site) -> None:
    child_sees.install("broken")
    examination = examine("platform_plugins:import_fails", 30)
    (found,) = of_kind(examination, Kind.IMPORT_ERROR)
    assert "No module named 'corefw_sample_missing_driver' (corefw_sample_broken/import_fails.py:3)" in found.what
    assert found.remedy == "install what is missing, or reinstall corefw-sample-broken"
    assert examination.left_out["general_plugins: corefw-sample-broken/misspelt"].startswith("not allowed")


def test_a_syntax_error_has_its_place(child_sees: Site, write_module: Write) -> None:
    write_module("corefw_sample_x", "\n\ndef broken(:\n")
    child_sees.metadata("corefw-sample-x", "1.0", GENERAL)
    assert "(corefw_sample_x.py:3)" in only(examine("corefw-sample-x/*", 30)).what


def test_versions_that_dont_fit_are_found_before_and_after_loading(child_sees: Site) -> None:
    groups = {"corefw.platform_plugins": {"x": "json:loads"}, "corefw.api_versions": {"platform_plugins": "v7"}}
    child_sees.metadata("corefw-sample-x", "1.0", groups)
    child_sees.install("broken")
    found = of_kind(examine("corefw-sample-x/*,from_the_future", 30), Kind.API_MISMATCH)
    told = {finding.what.partition(",")[0] for finding in found}
    assert "platform_plugins: corefw-sample-x/x is written for version 7 of platform_plugins" in told
    assert (
        "platform_plugins: corefw-sample-broken/from_the_future is written for version 99 of platform_plugins" in told
    )


def test_two_distributions_with_one_name_are_found(child_sees: Site) -> None:
    child_sees.install("endpoint")
    child_sees.install("endpoint", distribution="corefw-sample-twin")
    found = only(examine("echo", 30))
    assert found.kind is Kind.SAME_NAME
    assert "corefw-sample-endpoint 1.0" in found.where
    assert "corefw-sample-twin 1.0" in found.where
    assert "--plugins" in found.remedy


def test_what_isnt_what_its_group_asks_for_is_told_apart(child_sees: Site) -> None:
    child_sees.install("broken")
    (found,) = of_kind(examine("not_a_platform", 30), Kind.WRONG_KIND)
    assert "corefw.interfaces.platform:Platform" in found.remedy


def test_a_hook_that_fails_is_told_apart(child_sees: Site) -> None:
    child_sees.install("broken")
    (found,) = of_kind(examine("hook_fails", 30), Kind.HOOK_FAILS)
    assert "sample hook failure" in found.what


def test_a_plugin_that_hangs_or_ends_its_process_costs_only_itself(child_sees: Site, write_module: Write) -> None:
    write_module("corefw_sample_slow", "import time; time.sleep(60)")
    write_module("corefw_sample_x", "import os; os._exit(3)")
    write_module("corefw_sample_y", GOOD)
    names = {"a_slow": "corefw_sample_slow", "b_ends": "corefw_sample_x", "c_good": "corefw_sample_y"}
    child_sees.metadata("corefw-sample-x", "1.0", {"corefw.general_plugins": names})
    told = {f.what.partition(" ")[2].partition(" ")[0]: f.what for f in examine("corefw-sample-x/*", 4).findings}
    assert set(told) == {"corefw-sample-x/a_slow", "corefw-sample-x/b_ends"}
    assert "4 s" in told["corefw-sample-x/a_slow"]
    assert "exit status 3" in told["corefw-sample-x/b_ends"]


def test_a_plugin_that_a_child_doesnt_find_is_told(site: Site, write_module: Write) -> None:
    write_module("corefw_sample_x", "")
    site.metadata("corefw-sample-x", "1.0", GENERAL)  # on this process's path alone
    found = only(examine("corefw-sample-x/*", 30))
    assert found.kind is Kind.PROCESSES_DIFFER
    assert "PYTHONPATH" in found.remedy


def test_a_name_that_matches_nothing_is_told(child_sees: Site) -> None:
    child_sees.install("endpoint")
    assert only(examine("ecko", 30)).kind is Kind.UNKNOWN_NAME


PROJECT = """
[project]
name = "corefw-sample-x"
version = "1.0"
[project.entry-points."corefw.general_plugins"]
x = "corefw_sample_x"
"""


def test_a_project_that_isnt_installed_is_told_how(site: Site, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (found,) = check_project(tmp_path)
    assert found.kind is Kind.NOT_INSTALLED
    assert found.remedy == f"python -m pip install -e {tmp_path}"
    site.metadata("corefw_sample_x", "1.0", GENERAL)
    assert list(check_project(tmp_path)) == []


def test_a_project_with_entry_points_that_arent_installed_is_stale(site: Site, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT + 'y = "corefw_sample_x.y"\n')
    site.metadata("corefw_sample_x", "1.0", GENERAL)
    (found,) = check_project(tmp_path)
    assert found.kind is Kind.STALE_METADATA
    assert found.what.endswith("corefw.general_plugins: y")


def test_a_project_without_plugins_of_ours_is_none_of_our_business(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n[project.entry-points."other.group"]\na = "b"\n')
    assert list(check_project(tmp_path)) == []


def test_a_project_that_cant_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project")
    with pytest.raises(ConfigError, match="can't be read"):
        list(check_project(tmp_path))


def summary(**states: str) -> PluginSummary:
    fates = {process: Fate(state=state, reason="so it is") for process, state in states.items()}
    where = {"group": "general_plugins", "name": "x", "distribution": "theirs", "version": "1"}
    return PluginSummary(**where, state="loaded", reason="", processes=fates)


def differences(*plugins: PluginSummary, missing: dict[str, str] | None = None) -> list[str]:
    found = check_processes(plugins, missing or {}, (), "http://there")
    return [finding.what for finding in found if "isn't installed here" not in finding.what]


def test_a_plugin_that_works_in_one_process_of_a_server_only_is_told() -> None:
    assert differences(summary(front_end="loaded", engine_core="loaded")) == []
    assert differences(summary(front_end="unavailable", engine_core="unavailable")) == []
    (failed,) = differences(summary(front_end="loaded", engine_core="failed"))
    assert failed.endswith("works in the server's front_end, and in its engine_core it is failed: so it is")
    (absent,) = differences(summary(front_end="active"))
    assert absent.endswith("in its engine_core it is not found")
    assert differences(summary(front_end="active"), missing={"engine_core": "dead"}) == [
        "the server's engine_core gave no report: dead"
    ]


def test_an_environment_that_isnt_the_servers_is_told(site: Site) -> None:
    site.metadata("theirs", "2", {"corefw.general_plugins": {"x": "x"}})
    site.metadata("corefw-sample-new", "1", {"corefw.general_plugins": {"new": "x"}})
    here = [plugin for plugin in find_plugins() if plugin.distribution in ("theirs", "corefw-sample-new")]
    gone = PluginSummary(group="executors", name="g", distribution="d", version="1", state="", reason="", processes={})
    found = [f.what for f in check_processes([summary(front_end="loaded", engine_core="loaded"), gone], {}, here, "u")]
    assert found == [
        "general_plugins: theirs/x is 2 here, and 1 in the server",
        "executors: d/g is known to the server (1), and isn't installed here",
        "general_plugins: corefw-sample-new/new is installed here (1), and the server doesn't know it",
    ]
