"""What pyproject.toml registers is what the code has."""

from __future__ import annotations

import tomllib

import pytest

from corefw.plugin_system.discovery import find_plugins
from corefw.plugin_system.groups import GROUPS_BY_NAME, PREFIX
from corefw.plugin_system.manager import PluginManager
from tests.policy.sources import ROOT

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Others than ours are for other programs, such as pytest's.
_REGISTERED: dict[str, dict[str, str]] = {
    group: names for group, names in _PROJECT["entry-points"].items() if group.startswith(PREFIX)
}
_ENTRIES = [(group, name) for group, names in _REGISTERED.items() for name in names]


def test_every_group_of_pyproject_is_in_use() -> None:
    groups = {group.removeprefix(PREFIX) for group in _REGISTERED}
    assert groups <= set(GROUPS_BY_NAME)
    assert [name for name in sorted(groups) if GROUPS_BY_NAME[name].reserved] == []


def test_the_installed_metadata_is_that_of_pyproject() -> None:
    installed = {(PREFIX + p.group, p.name): p.value for p in find_plugins() if p.builtin}
    written = {(group, name): value for group, names in _REGISTERED.items() for name, value in names.items()}
    assert installed == written, "install again: pip install -e ."


@pytest.mark.parametrize(("group", "name"), _ENTRIES, ids=[f"{g.removeprefix(PREFIX)}:{n}" for g, n in _ENTRIES])
def test_a_built_in_resolves_to_a_class_of_its_groups_interface(group: str, name: str) -> None:
    assert isinstance(PluginManager.discover("").get(group, name), type)


@pytest.mark.parametrize(("group", "name"), _ENTRIES, ids=[f"{g.removeprefix(PREFIX)}:{n}" for g, n in _ENTRIES])
def test_a_built_in_calls_itself_by_the_name_it_is_registered_under(group: str, name: str) -> None:
    cls = PluginManager.discover("").get(group, name)
    assert getattr(cls, "name", name) == name
