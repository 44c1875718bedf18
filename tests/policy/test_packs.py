"""Packs stand on the interfaces and the facade, each as its neighbours do."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest

from corefw.plugin_system.discovery import find_plugins
from corefw.plugin_system.groups import GROUPS_BY_NAME, PREFIX
from corefw.plugin_system.manager import PluginManager
from tests.policy.packs import PACKS, imported_modules, package_of, project_of, python_files
from tests.policy.sources import ROOT, parse

MAX_FILE_LINES = 400
ALLOWED = (
    "corefw.errors",
    "corefw.interfaces",
    "corefw.messages",
    "corefw.models.layers",
    "corefw.models.ops",
    "corefw.sdk",
    "corefw.testing",
)
# What users have, tests may use: the offline engine.
OFFLINE = ("corefw.LLM", "corefw.llm")
_VERSIONS = f"{PREFIX}api_versions"
# One sample is there to fail.
_SAMPLES = sorted(
    path.parent for path in (ROOT / "tests" / "sample_plugins").glob("*/pyproject.toml") if path.parent.name != "broken"
)
_ENTRIES = [
    (group, name, project_of(pack)["name"])
    for pack in PACKS
    for group, names in project_of(pack)["entry-points"].items()
    if group != _VERSIONS
    for name in names
]


def is_allowed(module: str, own_package: str) -> bool:
    """Whether a pack may import a module of ours; others' are its own affair."""
    room = module.split(".")[0]
    if room.startswith("corefw_"):
        return room == own_package
    if room == "plugins":  # a file beside a pack's tests
        return module.startswith(f"plugins.{own_package.removeprefix('corefw_')}.tests.")
    if room in ("tests", ""):
        return False
    return room != "corefw" or any(module == name or module.startswith(f"{name}.") for name in ALLOWED)


def test_there_are_packs() -> None:
    assert ROOT / "plugins" / "endpoints" in PACKS


@pytest.mark.parametrize("folder", [*PACKS, *_SAMPLES], ids=lambda folder: folder.name)
def test_it_imports_the_interfaces_and_the_facade_alone(folder: Path) -> None:
    own = package_of(folder) if folder in PACKS else f"corefw_sample_{folder.name}"
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {module}"
        for path in python_files(folder)
        for line, module in imported_modules(path)
        if not is_allowed(module, own) and not (module in OFFLINE and "tests" in path.relative_to(folder).parts)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("corefw.sdk.server", True),
        ("corefw.models.layers.attention", True),
        ("corefw_mine.part", True),
        ("torch.nn", True),
        ("corefw.server.state", False),
        ("corefw.models.registry", False),
        ("corefw.sdkx", False),
        ("corefw", False),
        ("corefw_other", False),
        ("plugins.mine.tests.models", True),
        ("plugins.other.tests.models", False),
        ("tests.server.serving", False),
        (".sibling", False),
    ],
)
def test_the_check_knows_what_a_pack_may_import(module: str, allowed: bool) -> None:
    assert is_allowed(module, "corefw_mine") == allowed


def test_the_check_sees_every_kind_of_import(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("import corefw.env\nfrom corefw import server\ndef f():\n    from corefw.cli.main import main\n")
    assert list(imported_modules(file)) == [(1, "corefw.env"), (2, "corefw.server"), (4, "corefw.cli.main")]


@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: pack.name)
def test_a_packs_names_and_files_are_those_of_its_folder(pack: Path) -> None:
    project = project_of(pack)
    assert project["name"] == f"corefw-{pack.name.replace('_', '-')}"
    assert "corefw" in project["dependencies"]
    package = pack / package_of(pack)
    wanted = [pack / "README.md", pack / "tests", package / "__init__.py", package / "py.typed"]
    assert [str(path.relative_to(ROOT)) for path in wanted if not path.exists()] == []
    for names in project["entry-points"].values():
        assert all(value.startswith(("v", f"{package.name}.")) for value in names.values())


@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: pack.name)
def test_a_packs_tests_are_found_by_their_path(pack: Path) -> None:
    # As a package they would be ``tests``, which is the core's.
    assert list((pack / "tests").rglob("__init__.py")) == []
    assert list((pack / "tests").rglob("test_*.py")) != []


@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: pack.name)
def test_a_packs_modules_say_what_they_are_and_stay_short(pack: Path) -> None:
    modules = python_files(pack / package_of(pack))
    assert [path.name for path in modules if not ast.get_docstring(parse(path))] == []
    assert [path.name for path in modules if len(path.read_text("utf-8").splitlines()) > MAX_FILE_LINES] == []


@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: pack.name)
def test_a_packs_installed_metadata_is_that_of_its_pyproject(pack: Path) -> None:
    project = project_of(pack)
    installed = {(PREFIX + p.group, p.name): p.value for p in find_plugins() if p.distribution == project["name"]}
    written = {
        (group, name): value
        for group, names in project["entry-points"].items()
        if group != _VERSIONS
        for name, value in names.items()
    }
    assert installed == written, f"install again: pip install -e ./plugins/{pack.name}"


@pytest.mark.parametrize(("group", "name", "distribution"), _ENTRIES, ids=[f"{e[2]}:{e[1]}" for e in _ENTRIES])
def test_a_packs_plugin_resolves_and_calls_itself_by_its_name(group: str, name: str, distribution: str) -> None:
    assert not GROUPS_BY_NAME[group.removeprefix(PREFIX)].reserved
    cls = PluginManager.discover(f"{distribution}/{name}").get(group, name)
    if group == f"{PREFIX}general_plugins":
        assert isinstance(cls, ModuleType)  # of hooks
        return
    assert isinstance(cls, type)
    assert getattr(cls, "name", name) == name
