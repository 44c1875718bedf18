from __future__ import annotations

import sys

import pytest

from corefw.errors import ConfigError, PluginError
from corefw.plugin_system.making import made_by_plugin, whose
from corefw.plugin_system.manager import PluginManager
from corefw.testing.pytest_plugin import RegisterPlugin


def test_what_a_plugin_makes_is_given_on() -> None:
    assert made_by_plugin("connector 'x'", int, len, "abc") == 3


def test_what_goes_wrong_is_an_error_that_says_whose_it_is() -> None:
    with pytest.raises(PluginError, match="connector 'x' failed in int: ValueError: invalid literal"):
        made_by_plugin("connector 'x'", int, int, "z")
    with pytest.raises(PluginError, match="connector 'x' failed in exit: SystemExit: 3"):
        made_by_plugin("connector 'x'", int, sys.exit, 3)
    with pytest.raises(PluginError, match="connector 'x' failed in len: it returned int"):
        made_by_plugin("connector 'x'", str, len, "abc")


def test_an_error_for_the_operator_passes_as_it_is() -> None:
    def refuse() -> int:
        raise ConfigError("use another folder")

    with pytest.raises(ConfigError, match=r"^use another folder$"):
        made_by_plugin("connector 'x'", int, refuse)


def test_a_plugin_is_called_by_group_and_distribution_unless_it_is_built_in(
    register_plugin: RegisterPlugin,
) -> None:
    register_plugin("platform_plugins", "npu", "json:JSONDecoder", distribution="acme")
    plugins = PluginManager.discover()
    assert whose(plugins, "platform_plugins", "npu") == "platform 'npu' (platform_plugins) of acme 1.0"
    assert whose(plugins, "platform_plugins", "cpu") == "platform 'cpu'"
