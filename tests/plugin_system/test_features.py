from __future__ import annotations

import re
from pathlib import Path

import pytest

from corefw.plugin_system.features import FEATURES
from corefw.plugin_system.groups import GROUPS, Group
from corefw.plugin_system.hooks import HOOKS
from corefw.sdk.plugins import has_feature

PAGE = Path(__file__).parents[2] / "docs" / "plugins" / "compatibility.md"


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_a_group_is_a_feature_once_its_plugins_are_used(group: Group) -> None:
    assert has_feature(f"group:{group.name}") is not group.reserved


def test_every_hook_is_a_feature() -> None:
    assert HOOKS
    assert all(has_feature(f"hook:{name}") for name in HOOKS)


@pytest.mark.parametrize("name", ["", "no_such_thing", "group:nothing", "hook:corefw_loadde", "corefw_loaded"])
def test_what_this_corefw_has_never_heard_of_it_does_not_have(name: str) -> None:
    assert has_feature(name) is False


def test_every_feature_is_had_and_documented() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, meaning in FEATURES.items():
        assert has_feature(name)
        assert f"| `{name}` | {meaning} |" in page


def test_the_pages_snippet_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(snippet, str(PAGE), "exec"), {})
    assert capsys.readouterr().out == ("connectors are used here\n" if has_feature("group:kv_connectors") else "")
