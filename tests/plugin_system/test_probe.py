"""States are resolved in a child process, which a plugin may take down with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.plugin_system.conftest import Site


def probed(site: Site, names: list[str], timeout_s: float = 30.0) -> dict[str, list[str]]:
    """State and reason by name, for plugins of the broken sample and those of the core."""
    code = (
        "import json, sys; from corefw.plugin_system.discovery import find_plugins;"
        "from corefw.plugin_system.probe import probe;"
        f"chosen = [p for p in find_plugins() if p.name in {names!r}];"
        f"print(json.dumps({{p.name: fate for p, fate in probe(chosen, {timeout_s}).items()}}))"
    )
    answer: dict[str, Any] = json.loads(site.output(code))
    return answer


@pytest.fixture
def broken(site: Site) -> Site:
    site.install("broken")
    return site


def test_a_plugin_that_ends_the_process_is_named_and_the_others_go_on(broken: Site) -> None:
    fates = probed(broken, ["cpu", "crashes", "exits", "raises_on_call", "hook_fails", "import_fails", "wanders"])
    assert fates["crashes"] == ["failed", "it ended the process that loaded it (SIGKILL)"]
    assert fates["exits"][0] == "failed"
    assert fates["exits"][1].startswith("SystemExit: 3")
    assert "sample call failure" in fates["raises_on_call"][1]
    assert "hook corefw_loaded raised RuntimeError" in fates["hook_fails"][1]
    assert fates["wanders"][0] == fates["cpu"][0] == "loaded"


def test_a_plugin_that_hangs_is_named(broken: Site) -> None:
    fates = probed(broken, ["cpu", "slow", "wanders"], 3.0)
    assert fates["slow"] == ["failed", "it wasn't loaded within 3 s; the process was killed"]
    assert fates["wanders"][0] == fates["cpu"][0] == "loaded"


def test_a_copy_of_the_process_that_a_plugin_makes_answers_for_nobody(broken: Site) -> None:
    fates = probed(broken, ["cpu", "exits", "forks", "mumbles", "wanders"])
    assert fates["forks"] == ["loaded", "from corefw_sample_broken.forks:Processor"]
    assert fates["mumbles"][1] == "MumbleError: its message can't be made (corefw_sample_broken/mumbles.py:11)"
    assert fates["exits"][1].startswith("SystemExit: 3")
    assert fates["wanders"] == ["loaded", "from corefw_sample_broken.wanders:Processor"]


def test_nothing_to_load_needs_no_child(site: Site) -> None:
    assert probed(site, []) == {}
