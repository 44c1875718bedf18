"""``corefw plugins new`` and ``check``, as commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from corefw.cli.main import main
from corefw.cli.plugins.kinds import KINDS
from corefw.cli.plugins.scaffold import Project, render
from corefw.plugin_system.groups import GROUPS
from corefw.testing.suites import SUITES


def name_of(kind: str) -> str:
    return "MineForCausalLM" if kind == "model" else "my-thing"


def report_of(folder: Path, *flags: str) -> tuple[int, dict[str, object]]:
    words = [sys.executable, "-P", "-m", "corefw.cli.main", "plugins", "check", str(folder), "--json", *flags]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, json.loads(done.stdout)


def test_there_is_a_kind_for_every_group_in_use() -> None:
    groups = {group for kind in KINDS.values() for group in kind.entries}
    assert groups == {group.name for group in GROUPS if not group.reserved} == set(SUITES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_project_is_written_whole_and_ruff_finds_nothing(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "project"
    assert main(["plugins", "new", kind, name_of(kind), "--directory", str(folder)]) == 0
    assert f"corefw plugins check {folder}" in capsys.readouterr().out
    (package,) = folder.glob("corefw_*")
    wanted = ("pyproject.toml", "README.md", ".github/workflows/ci.yml", f"{package.name}/py.typed")
    assert all((folder / name).is_file() for name in wanted)
    assert list((folder / "tests").glob("test_*.py"))
    words = [sys.executable, "-m", "ruff", "check", "--no-cache", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_names_become_those_of_packages_and_classes() -> None:
    project = Project("endpoint", "my_own-thing2")
    assert (project.distribution, project.package) == ("corefw-my-own-thing2", "corefw_my_own_thing2")
    assert project.class_name == "MyOwnThing2"
    assert 'my_own-thing2 = "corefw_my_own_thing2.endpoint:MyOwnThing2"' in dict(render(project))["pyproject.toml"]
    assert Project("model", "MyForCausalLM").class_name == "MyForCausalLM"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["platforms", "mine"], "there is no kind 'platforms'"),
        (["endpoint", "My Thing"], "can't be a plugin's name"),
        (["endpoint", "../up"], "can't be a plugin's name"),
        (["endpoint", "none"], "a word of Python"),
        (["model", "mine"], "named by its architecture"),
    ],
)
def test_what_cannot_be_written_is_said(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "new", *words, "--directory", str(tmp_path / "project")]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "project").exists()


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    assert main(["plugins", "new", "endpoint", "mine", "--directory", str(tmp_path)]) == 1
    assert "isn't empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def test_a_project_is_checked_as_it_is_written_now(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    main(["plugins", "new", "strategy", "my-thing", "--directory", str(folder)])
    status, report = report_of(folder)
    (plugin,) = report["plugins"]  # type: ignore[misc]
    assert (status, plugin["name"], {case["result"] for case in plugin["cases"]}) == (0, "my-thing", {"holds"})
    module = next(folder.glob("corefw_*")) / "strategy.py"
    module.write_text(module.read_text().replace("(request.num_tokens,)", 'float("nan")'))
    status, report = report_of(folder)
    failed = [case["what"] for case in report["plugins"][0]["cases"] if case["result"] == "fails"]  # type: ignore[index]
    assert (status, failed) == (1, ["its keys are numbers that stay"])
    module.write_text("import os\nos._exit(7)\n")
    status, report = report_of(folder)
    assert (status, report["problems"]) == (1, ["the checks ended with status 7: "])


@pytest.mark.parametrize("kind", ["endpoint", "logits-processor"])
def test_what_a_new_project_takes_of_clients_it_refuses_by_the_field(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    main(["plugins", "new", kind, "my-thing", "--directory", str(folder)])
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "refused_by_its_field"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_a_projects_own_tests_say_what_the_suite_needs(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    main(["plugins", "new", "logits-processor", "my-thing", "--directory", str(folder)])
    assert report_of(folder)[0] == 0
    for test in (folder / "tests").glob("test_*.py"):
        test.unlink()
    status, report = report_of(folder)
    cases = [case for plugin in report["plugins"] for case in plugin["cases"]]  # type: ignore[attr-defined]
    left_out = [case for case in cases if case["result"] == "not checked"]
    assert (status, {case["reason"].partition(";")[0] for case in left_out}) == (0, {"it leaves the request alone"})


def test_a_wrong_group_is_a_problem(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    main(["plugins", "new", "stat-logger", "my-thing", "--directory", str(folder)])
    file = folder / "pyproject.toml"
    file.write_text(file.read_text().replace("corefw.stat_logger_plugins", "corefw.stat_loggers"))
    status, report = report_of(folder)
    assert status == 1
    assert "nobody reads the entry point group 'corefw.stat_loggers'" in str(report["problems"])


def test_an_installed_plugin_is_checked_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "check", "corefw/fcfs"]) == 0
    out = capsys.readouterr().out
    assert "scheduler_strategies: corefw/fcfs" in out
    assert "0 fails" in out.splitlines()[-1]
    assert main(["plugins", "check", "fcfsx"]) == 1
    assert "did you mean fcfs" in capsys.readouterr().err


def test_checks_that_hang_are_ended(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    main(["plugins", "new", "general", "my-thing", "--directory", str(folder)])
    (next(folder.glob("corefw_*")) / "hooks.py").write_text("import time\ntime.sleep(60)\n")
    status, report = report_of(folder, "--timeout", "3")
    assert (status, report["problems"]) == (1, ["the checks took more than 3 s and were ended"])
