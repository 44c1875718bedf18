from __future__ import annotations

import importlib
import logging
import re

import pytest

from corefw import __version__
from corefw.deprecation import DEPRECATED, Deprecated, blamed_on, deprecated_names, warn_of_overridden

NAME = Deprecated(name="here:old", since="0.2", removed_in="0.4", replacement="corefw.errors:ConfigError")
METHOD = Deprecated(
    name=f"{__name__}:Interface.old_way", since="0.2", removed_in="0.4", replacement="Interface.new_way"
)


class Interface:
    """Of which plugins derive."""

    def old_way(self) -> None:
        """Deprecated."""


def test_a_deprecated_name_gives_its_replacement_and_warns() -> None:
    find = deprecated_names("here", [NAME])
    with pytest.warns(DeprecationWarning, match=r"here:old, .* since corefw 0\.2 and gone in 0\.4; use corefw\.errors"):
        assert find("old").__name__ == "ConfigError"


def test_any_other_name_is_missing_as_from_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'here' has no attribute 'other'"):
        deprecated_names("here", [NAME])("other")


def test_while_a_plugin_is_loaded_it_is_named_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    find = deprecated_names("here", [NAME])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with blamed_on("acme/npu"):
                find("old")
    assert [r.message.partition(",")[0] for r in caplog.records] == ["plugin acme/npu uses here:old"]


def test_a_plugin_that_overrides_a_deprecated_method_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class Old(Interface):
        def old_way(self) -> None:
            pass

    class New(Interface):
        pass

    with caplog.at_level(logging.WARNING), blamed_on("acme/old"):
        warn_of_overridden(New, [METHOD])
        assert not caplog.records
        warn_of_overridden(Old, [METHOD])
    assert "plugin acme/old uses" in caplog.text
    assert "use Interface.new_way" in caplog.text


def test_the_table_keeps_the_policy_and_names_what_is_there() -> None:
    now = _release(__version__)
    for entry in (*DEPRECATED, NAME, METHOD):
        since, removed = _release(entry.since), _release(entry.removed_in)
        assert removed[0] > since[0] or removed[1] >= since[1] + 2, f"{entry.name} has to be kept two minor releases"
    for entry in DEPRECATED:
        assert now < _release(entry.removed_in), f"{entry.name} was to be removed by now"
        module, _, name = entry.name.partition(":")
        assert hasattr(importlib.import_module(module), name.partition(".")[0])


def _release(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    assert found is not None
    return int(found.group(1)), int(found.group(2))
