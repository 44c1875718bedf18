"""What a plugin does while it is loaded stays with it."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path

import pytest

from corefw.plugin_system import isolation
from corefw.plugin_system.isolation import contained
from tests.plugin_system.conftest import Site

PREPARE = (
    "import json, os, sys, logging; logging.basicConfig(); from corefw.plugin_system.manager import PluginManager;"
    "manager = PluginManager.discover();"
)


def test_a_plugin_that_prints_moves_and_rearranges_disturbs_nobody(site: Site) -> None:
    site.install("broken")
    code = PREPARE + (
        "before = list(sys.path), os.getcwd(); cls = manager.get('logits_processors', 'wanders');"
        "print(json.dumps([cls.__name__, sys.path[:-1] == before[0], sys.path[-1], os.getcwd() == before[1]]))"
    )
    done = site.run(code)
    assert json.loads(done.stdout) == ["Processor", True, "/sample/first", True], done.stderr
    assert "hello from a plugin" in done.stderr
    assert "corefw-sample-broken/wanders changed the working directory" in done.stderr
    assert "corefw-sample-broken/wanders changed sys.path; what it added comes last: /sample/first" in done.stderr


def test_a_plugin_that_asks_the_interpreter_to_end_has_failed(site: Site) -> None:
    site.install("broken")
    code = PREPARE + (
        "from corefw.errors import PluginError\n"
        "try:\n    manager.get('logits_processors', 'exits')\nexcept PluginError as error:\n    print(error)"
    )
    assert "is failed: SystemExit: 3" in site.output(code)


def test_one_that_takes_long_is_named_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(isolation, "SLOW_S", 0.01)
    with caplog.at_level(logging.WARNING), contained("acme/npu"):
        deadline = time.monotonic() + 10
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "acme/npu is still being loaded after" in caplog.text


def test_one_that_does_nothing_odd_leaves_no_trace(caplog: pytest.LogCaptureFixture) -> None:
    before = list(sys.path), Path.cwd()
    with caplog.at_level(logging.WARNING), contained("acme/npu"):
        pass
    assert (list(sys.path), Path.cwd(), caplog.records) == (*before, [])


def test_a_working_directory_that_is_gone_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with contained("acme/npu"):
        assert sys.stdout is sys.stderr
    with pytest.raises(FileNotFoundError):
        os.getcwd()  # noqa: PTH109 - the call that fails
