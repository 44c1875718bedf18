"""The Makefile as people use it, with stand-ins for the programs it starts."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.policy.sources import ROOT

_SERVER = """#!/bin/sh
trap 'echo stopped >> "$0.log"; exit 0' TERM INT
for argument in "$@"; do echo "$argument" >> "$0.log"; done
echo started >> "$0.log"
while true; do sleep 0.05; done
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the Makefile, a pyproject.toml and a finished environment with a stand-in for corefw."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    for name, text in {"python": '#!/bin/sh\necho python "$@"\n', "corefw": _SERVER}.items():
        (binaries / name).write_text(text, encoding="utf-8")
        (binaries / name).chmod(0o755)
    for stamp in (".runtime-installed", ".tools-installed"):
        (tmp_path / ".venv" / stamp).touch()
    return tmp_path


def _make(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["make", *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _wait_for(condition: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return condition()


def _terminate(make: subprocess.Popen[bytes]) -> None:
    """A supervisor's signal: to make alone."""
    make.send_signal(signal.SIGTERM)


def _interrupt(make: subprocess.Popen[bytes]) -> None:
    """Ctrl-C in a terminal: to the whole group."""
    os.killpg(make.pid, signal.SIGINT)


@pytest.mark.parametrize("stop", [_terminate, _interrupt])
def test_make_serve_passes_arguments_and_signals_on(
    checkout: Path, stop: Callable[[subprocess.Popen[bytes]], None]
) -> None:
    log = checkout / ".venv" / "bin" / "corefw.log"

    def lines() -> list[str]:
        return log.read_text(encoding="utf-8").splitlines() if log.exists() else []

    settings = ["MODEL=a b", "PORT=81", "ARGS=--dtype float32 --max-model-len 64"]
    make = subprocess.Popen(
        ["make", "serve", *settings], cwd=checkout, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        assert _wait_for(lambda: "started" in lines())
        given = ["serve", "a b", "--host", "127.0.0.1", "--port", "81", "--dtype", "float32", "--max-model-len", "64"]
        assert lines() == [*given, "started"]
        stop(make)
        assert _wait_for(lambda: "stopped" in lines())
        make.wait(20)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(make.pid, signal.SIGKILL)


def test_a_finished_environment_is_left_alone(checkout: Path) -> None:
    assert "install" not in _make(checkout, "test")
    assert _make(checkout, "-q", ".venv/.tools-installed") == ""


def test_a_changed_pyproject_installs_again_in_one_command(checkout: Path) -> None:
    for stamp in (".runtime-installed", ".tools-installed"):
        (checkout / ".venv" / stamp).unlink()
    installs = [line for line in _make(checkout, "test").splitlines() if line.startswith("python -m pip")]
    assert len(installs) == 1
    assert ".[test,dev]" in installs[0]


def _installed(folder: Path, target: str) -> list[str]:
    """What the install command of a target names beside its flags."""
    (install,) = [line for line in _make(folder, "-n", "-B", target).splitlines() if " install " in line]
    return [word.strip('" ') for word in install.split(" -e ")[1:]]


def test_packs_are_installed_once_they_exist(checkout: Path) -> None:
    assert (_installed(checkout, "serve"), _installed(checkout, "test")) == (["."], [".[test,dev]"])
    for pack in ("endpoints", "models_transformers", "new"):
        (checkout / "plugins" / pack).mkdir(parents=True)
        (checkout / "plugins" / pack / "pyproject.toml").touch()
    (checkout / "plugins" / "no_pack").mkdir()
    light = ["./plugins/endpoints", "./plugins/new"]
    assert _installed(checkout, "serve") == [".", *light]
    assert _installed(checkout, "test") == [".[test,dev]", light[0], "./plugins/models_transformers", light[1]]


def test_a_packs_changed_pyproject_installs_again(checkout: Path) -> None:
    (checkout / "plugins" / "endpoints").mkdir(parents=True)
    pyproject = checkout / "plugins" / "endpoints" / "pyproject.toml"
    pyproject.touch()
    os.utime(pyproject, (time.time() + 60,) * 2)
    assert "./plugins/endpoints" in _make(checkout, "-n", "serve")


def test_changed_kernels_are_built_again(checkout: Path) -> None:
    sources = checkout / "plugins" / "cpu_kernels" / "csrc"
    sources.mkdir(parents=True)
    (sources.parent / "pyproject.toml").touch()
    kernel = sources / "kernel.cpp"
    kernel.touch()
    os.utime(kernel, (time.time() + 60,) * 2)
    assert "./plugins/cpu_kernels" in _make(checkout, "-n", "serve")


def test_a_missing_compiler_is_said_and_stops_nothing(checkout: Path) -> None:
    said = _make(checkout, "-B", ".venv/.runtime-installed", "CXX=no-such-compiler")
    assert "no C++ compiler" in said
    assert "python -m pip" in said
    assert "no C++ compiler" not in _make(checkout, "-B", ".venv/.runtime-installed", "CXX=sh")


def test_a_failed_environment_is_not_taken_for_a_finished_one(checkout: Path) -> None:
    shutil.rmtree(checkout / ".venv")
    broken = checkout / "broken-python"
    broken.write_text("#!/bin/sh\nmkdir -p .venv/bin; touch .venv/bin/python; exit 1\n", encoding="utf-8")
    broken.chmod(0o755)
    done = subprocess.run(
        ["make", "test", "PYTHON=./broken-python"], cwd=checkout, capture_output=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert not (checkout / ".venv" / "bin" / "python").exists()
