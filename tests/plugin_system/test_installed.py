from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, DistributionFinder, PathDistribution
from importlib.metadata import distributions as all_distributions
from pathlib import Path

import pytest

from corefw.plugin_system.installed import Installed, find_installed
from corefw.plugin_system.names import normalized_distribution
from tests.sample_plugins.install import write_metadata

GROUPS = {"corefw.general_plugins": {"thing": "thing:register"}}


def found(*path: Path) -> list[tuple[str, str]]:
    return [(one.name, one.version) for one in find_installed("corefw.", list(map(str, path)))]


def entry_points(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "entry_points.txt").write_text("[corefw.general_plugins]\nthing = thing\n", encoding="utf-8")


def test_name_and_version_come_from_the_folders_name_and_no_metadata_is_read(tmp_path: Path) -> None:
    write_metadata(tmp_path, "Some.Thing", "1.0+local.2", GROUPS)
    (tmp_path / "Some.Thing-1.0+local.2.dist-info" / "METADATA").unlink()
    assert found(tmp_path) == [("some-thing", "1.0+local.2")]


def test_an_egg_info_without_a_version_is_looked_up_inside(tmp_path: Path) -> None:
    write_metadata(tmp_path, "old-thing", "3.1", GROUPS, suffix="egg-info")
    assert found(tmp_path) == [("old-thing", "3.1")]


def test_a_name_with_a_dash_in_a_folders_name_is_looked_up_inside(tmp_path: Path) -> None:
    write_metadata(tmp_path, "odd", "2.0", GROUPS)
    odd = (tmp_path / "odd-2.0.dist-info").rename(tmp_path / "odd-thing-2.0.dist-info")
    (odd / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-thing\nVersion: 2.0\n\nbody\n", encoding="utf-8")
    assert found(tmp_path) == [("odd-thing", "2.0")]


def test_a_folders_name_that_says_no_version_stands_for_no_other_distribution(tmp_path: Path) -> None:
    write_metadata(tmp_path, "odd", "2.0", GROUPS)
    other = tmp_path / "odd-thing-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-thing\nVersion: 1.0\n", encoding="utf-8")
    (tmp_path / "first").mkdir()
    other.rename(tmp_path / "first" / other.name)
    assert found(tmp_path / "first", tmp_path) == [("odd", "2.0")]


def test_what_an_installer_could_not_delete_is_no_distribution(tmp_path: Path) -> None:
    write_metadata(tmp_path, "thing", "1.0", GROUPS)
    shutil.copytree(tmp_path / "thing-1.0.dist-info", tmp_path / "~hing-0.9.dist-info")
    assert found(tmp_path) == [("thing", "1.0")]


def test_what_is_no_file_of_metadata_is_not_read(tmp_path: Path) -> None:
    for name in ("pipe", "folder", "huge", "binary"):
        write_metadata(tmp_path, name, "1.0", GROUPS)
        file = tmp_path / f"{name}-1.0.dist-info" / "entry_points.txt"
        text = file.read_bytes()
        file.unlink()
        if name == "pipe":
            os.mkfifo(file)
        elif name == "folder":
            file.mkdir()
        elif name == "huge":
            file.write_bytes(text + b"\n" * 5_000_000)
        else:
            file.write_bytes(b"\xff\xfe\0\n" + text)
    assert found(tmp_path) == [("binary", "1.0")]


def test_what_imports_pass_over_on_the_path_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_metadata(tmp_path, "thing", "1.0", GROUPS)
    monkeypatch.setattr(sys, "path", [tmp_path / "nowhere", b"bytes", str(tmp_path), tmp_path])
    assert [one.name for one in find_installed("corefw.")] == ["thing"]


def test_metadata_in_a_zip_file_may_lack_its_main_file(tmp_path: Path) -> None:
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as out:
        out.writestr("bare-1.0.dist-info/entry_points.txt", "[corefw.general_plugins]\nthing = thing\n")
    (tmp_path / "torn.zip").write_bytes(b"PK\x03\x04 torn")
    assert found(tmp_path / "torn.zip", archive) == [("unknown", "unknown")]


def test_an_egg_folder_on_the_path_is_found(tmp_path: Path) -> None:
    egg = tmp_path / "egg_thing-0.3-py3.11.egg"
    entry_points(egg / "EGG-INFO")
    assert found(egg) == [("egg-thing", "0.3")]


def test_a_zip_file_on_the_path_is_found(tmp_path: Path) -> None:
    write_metadata(tmp_path / "inside", "zipped", "1.2", GROUPS)
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as out:
        for file in (tmp_path / "inside").rglob("*"):
            out.write(file, file.relative_to(tmp_path / "inside"))
    (one,) = find_installed("corefw.", [str(archive)])
    assert (one.name, one.version, one.location) == ("zipped", "1.2", None)
    assert one.entry_points == (("corefw.general_plugins", "thing", "thing:register"),)


def test_the_first_on_the_path_counts_although_it_has_no_plugins(tmp_path: Path) -> None:
    write_metadata(tmp_path / "first", "thing", "2.0", {})
    write_metadata(tmp_path / "second", "thing", "1.0", GROUPS)
    assert found(tmp_path / "first", tmp_path / "second") == []
    assert found(tmp_path / "second", tmp_path / "first") == [("thing", "1.0")]


def test_groups_of_others_comments_and_blanks_are_passed_over(tmp_path: Path) -> None:
    entry_points(tmp_path / "thing-1.0.dist-info")
    (tmp_path / "thing-1.0.dist-info" / "entry_points.txt").write_text(
        "[console_scripts]\nthing = thing:main\n\n[corefw.model_plugins]\n# a comment\n A = a.b:C  [extra]\n"
        "[corefwish.model_plugins]\nB = b\n",
        encoding="utf-8",
    )
    (one,) = find_installed("corefw.", [str(tmp_path)])
    assert one.entry_points == (("corefw.model_plugins", "A", "a.b:C  [extra]"),)


def test_a_folder_that_cannot_be_read_holds_nothing(tmp_path: Path) -> None:
    assert found(tmp_path / "absent") == []


class _Finder(DistributionFinder):
    """Knows one distribution that lies on no path."""

    def __init__(self, location: Path) -> None:
        self._location = location

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        return None

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterable[Distribution]:
        return [PathDistribution(self._location)]


def test_other_finders_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_metadata(tmp_path, "elsewhere", "1.0", GROUPS)
    assert "elsewhere" not in {one.name for one in find_installed("corefw.")}
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, _Finder(tmp_path / "elsewhere-1.0.dist-info")])
    assert [one.version for one in find_installed("corefw.") if one.name == "elsewhere"] == ["1.0"]


def test_it_finds_what_the_standard_library_finds() -> None:
    def of(one: Installed) -> tuple[str, str, int]:
        return one.name, one.version, len(one.entry_points)

    expected = {}
    for distribution in all_distributions():
        name = normalized_distribution(distribution.metadata["Name"])
        ours = [e for e in distribution.entry_points if e.group.startswith("corefw.")]
        expected.setdefault(name, (name, distribution.version, len(ours)))
    assert {of(one) for one in find_installed("corefw.")} == {value for value in expected.values() if value[2]}


def test_a_list_of_plugins_needs_no_slow_imports() -> None:
    code = (
        "import sys; from corefw.cli.main import main; main(['plugins', 'list']);"
        "print({'importlib.metadata', 'pluggy', 'hashlib', 'torch', 'numpy'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.splitlines()[-1] == "set()"
