"""The repository's own files keep their word."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import pytest

from corefw.plugin_system.document import group_table
from corefw.plugin_system.hooks import HOOKS
from corefw.plugin_system.verdicts import State
from tests.policy.sources import CORE, ROOT, text_files

# A character class in each, so that this file doesn't match itself.
_UNWANTED = {
    "path of one machine": re.compile(r"(?<![\w./<-])/(?:[r]oot|[w]ork|[h]ome/\w+|[U]sers/\w+|opt/[pw]\w+)/"),
    "package index of one machine": re.compile(r"[i]ndex-url[ =]+\S*://|[f]ind-links[ =]+\S*/|[t]est\.pypi\.org"),
    "unfinished": re.compile(r"\b(?:[T]ODO|[F]IXME)\b"),
}
_SKIPPED = re.compile(r"pytest\.(?:[s]kip|[x]fail|[i]mportorskip)\(|mark\.(?:[s]kip|[x]fail)")
_TARGET = re.compile(r"\bmake ((?:[a-z]+-)*[a-z]+)\b")


def _hits(pattern: re.Pattern[str], files: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]


@pytest.mark.parametrize("what", _UNWANTED)
def test_no_file_has(what: str) -> None:
    assert _hits(_UNWANTED[what], [path for path in text_files() if path.name != "LICENSE"]) == []


def test_a_test_is_left_out_for_missing_hardware_only() -> None:
    tests = [path for path in text_files() if path.suffix == ".py" and "tests" in path.parts]
    assert [hit for hit in _hits(_SKIPPED, tests) if "hardware" not in hit] == []


def test_no_module_of_ours_is_mocked() -> None:
    mocks = re.compile(r"unittest[.]mock|from unittest import [m]ock|setattr\([\"']corefw[.]|[m]ocker\.patch")
    assert _hits(mocks, [path for path in text_files() if path.suffix == ".py"]) == []


def test_every_folder_of_tests_is_a_package() -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert sorted(str(folder) for folder in folders if not (folder / "__init__.py").exists()) == []


def _targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "Makefile", ".ci/run"])
def test_every_make_target_that_is_named_exists(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    commands = "\n".join(re.findall(r"`[^`\n]+`|^\s*(?:@echo \")?make .*$", text, re.MULTILINE))
    assert set(_TARGET.findall(commands)) <= _targets()


def test_the_make_targets_people_rely_on_exist() -> None:
    assert {"serve", "test", "test-all", "lint", "clean"} <= _targets()


def test_the_licence_is_the_whole_apache_text() -> None:
    text = " ".join((ROOT / "LICENSE").read_text(encoding="utf-8").split())
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "0ffddef9e48f8a09aed5caf2d44f7ba1c1be2d9b8e0a6f693b1635b2d5566645"
    )


def test_every_room_is_in_the_architecture_page_once() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rooms = [path.name for path in sorted(CORE.iterdir()) if (path / "__init__.py").exists()]
    assert {room: page.count(f"| `{room}/` |") for room in rooms} == dict.fromkeys(rooms, 1)
    assert len(page.splitlines()) <= 100


def test_the_ci_entry_can_be_executed() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_group_table_in_the_documentation_is_the_one_in_code() -> None:
    assert group_table() in (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8"), (
        "paste the output of python -m corefw.plugin_system.document"
    )


def test_every_state_is_documented() -> None:
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    assert [state for state in State if f"| `{state}` |" not in page] == []


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_is_documented_and_used_by_a_real_distribution(hook: str) -> None:
    assert f"`{hook}" in (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    users = (ROOT / "tests" / "sample_plugins").rglob("*.py")
    assert any(f"@hookimpl\ndef {hook}(" in path.read_text(encoding="utf-8") for path in users)
