"""A plugin that hangs, ends the process or crashes can't keep people from a page of help without a word."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from corefw.testing.pytest_plugin import RegisterPlugin

DECLARES = """
from dataclasses import dataclass
from corefw.sdk.plugins import hookimpl

@dataclass
class Colours:
    hue: str = "red"

@hookimpl
def corefw_config_section():
    return Colours
"""
HANGS_IN_HOOK = """
import time
from corefw.sdk.plugins import hookimpl

@hookimpl
def corefw_config_section():
    time.sleep(60)
"""

Install = Callable[[str, str], None]


@pytest.fixture
def install(register_plugin: RegisterPlugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a general plugin of that name and source."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    def write(name: str, source: str) -> None:
        (tmp_path / f"plugin_of_{name}.py").write_text(source, "utf-8")
        register_plugin("general_plugins", name, f"plugin_of_{name}", distribution=f"acme-{name}")

    return write


def ask_for_help() -> tuple[subprocess.CompletedProcess[str], float]:
    began_s = time.monotonic()
    command = [sys.executable, "-m", "corefw.cli.main", "serve", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done, time.monotonic() - began_s


@pytest.mark.parametrize("source", ["import time; time.sleep(60)", HANGS_IN_HOOK])
def test_help_goes_on_without_a_plugin_that_hangs_and_names_it(install: Install, source: str) -> None:
    install("hangs", source)
    install("paints", DECLARES)
    done, took_s = ask_for_help()
    assert done.returncode == 0, done.stderr
    assert "settings of plugin acme-hangs/hangs:\n  not listed: loading it takes too long" in done.stdout
    assert "--paints.hue VALUE" in done.stdout
    assert "--max-num-seqs" in done.stdout
    assert took_s < 20


def test_help_waits_so_long_for_all_plugins_and_no_longer(install: Install) -> None:
    for letter in "abcdef":
        install(letter, "import time; time.sleep(60)")
    done, took_s = ask_for_help()
    assert done.returncode == 0, done.stderr
    assert all(f"settings of plugin acme-{letter}/{letter}:" in done.stdout for letter in "abcdef")
    assert took_s < 20


def test_a_plugin_that_ends_the_process_while_it_is_loaded_is_named(install: Install) -> None:
    install("ends", "import os; os._exit(3)")
    done, _ = ask_for_help()
    assert done.returncode == 3
    assert "corefw: plugin acme-ends/ends ends the process with os._exit(3) while it is loaded" in done.stderr


def test_a_plugin_that_crashes_leaves_the_place_where_it_did(install: Install) -> None:
    install("crashes", "import ctypes; ctypes.string_at(0)")
    done, _ = ask_for_help()
    assert done.returncode < 0
    assert "Segmentation fault" in done.stderr
    assert "plugin_of_crashes.py" in done.stderr
