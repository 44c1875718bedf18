from __future__ import annotations

from importlib import import_module

import pytest

from corefw.errors import PluginError
from corefw.plugin_system.groups import GROUPS, DefaultPolicy, Group, group_named
from corefw.plugin_system.loading import attribute_of


def test_every_group_has_one_sentence_and_a_unique_name() -> None:
    assert len({group.name for group in GROUPS}) == len(GROUPS)
    assert len({group.what for group in GROUPS}) == len(GROUPS)
    for group in GROUPS:
        assert group.description.endswith("."), group.name
        assert group.processes, group.name


@pytest.mark.parametrize("group", [g for g in GROUPS if g.interface], ids=lambda g: g.name)
def test_a_groups_interface_is_a_class(group: Group) -> None:
    assert group.interface is not None
    assert isinstance(attribute_of(group.interface), type)


def test_every_interface_module_with_a_group_is_in_the_table() -> None:
    for group in GROUPS:
        if group.interface is not None:
            module = import_module(group.interface.partition(":")[0])
            assert group.interface.partition(":")[2] in module.__all__


def test_only_network_surface_and_downloads_are_denied_by_default() -> None:
    denied = {group.name for group in GROUPS if group.policy is DefaultPolicy.DENY}
    assert denied == {"endpoint_plugins", "adapter_resolvers"}


def test_a_group_is_found_with_and_without_the_prefix() -> None:
    assert group_named("corefw.platform_plugins") is group_named("platform_plugins")
    assert group_named("platform_plugins").entry_point_group == "corefw.platform_plugins"


def test_an_unknown_group_names_the_nearest() -> None:
    with pytest.raises(PluginError, match=r"'platform_plugin'; did you mean platform_plugins"):
        group_named("platform_plugin")
