"""The command line as an operator meets it."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from corefw import __version__


def corefw(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-m", "corefw.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **(env or {})},
    )


def test_version_is_printed() -> None:
    assert corefw("--version").stdout.strip() == f"corefw {__version__}"


def test_without_a_command_help_is_shown() -> None:
    shown = corefw()
    assert shown.returncode == 2
    assert "serve" in shown.stdout


def test_the_plugin_list_names_the_built_ins() -> None:
    shown = corefw("plugins", "list")
    assert shown.returncode == 0
    assert "platform_plugins" in shown.stdout
    assert "cpu" in shown.stdout


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("/no/such/model",), "/no/such/model"),
        (("missing.gguf",), "missing.gguf"),
        (("--port", "70000"), "--port"),
        (("--dtype", "float64"), "--dtype"),
        (("--max-model-len", "0"), "--max-model-len"),
        (("--load-format", "pickle"), "pickle"),
        (("--attention-backend", "flash9"), "flash9"),
        (("--max-modellen", "5"), "did you mean --max-model-len?"),
        (("--port", "abc"), "--port"),
        (("--max-model-len", "100000"), "8192 positions"),
        (("--kv-cache-memory", "much"), "much"),
    ],
)
def test_a_wrong_setting_is_one_clear_message(flags: tuple[str, ...], said: str) -> None:
    shown = corefw("serve", *flags, "--port", "0") if "--port" not in flags else corefw("serve", *flags)
    assert shown.returncode != 0
    lines = [line for line in shown.stderr.splitlines() if " INFO " not in line]
    assert len(lines) == 1
    assert said in lines[0]


def test_a_hub_name_offline_says_at_once_what_to_do() -> None:
    shown = corefw("serve", "someone/some-model", "--port", "0", env={"HF_HUB_OFFLINE": "1"})
    assert shown.returncode == 1
    assert "someone/some-model" in shown.stderr
    assert "offline" in shown.stderr
    assert "pypi:NAME" in shown.stderr


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        shown = corefw("serve", "--port", str(port))
    assert shown.returncode == 1
    assert str(port) in shown.stderr
    assert "--port" in shown.stderr


def test_a_broken_model_file_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\x00\x00\x00")
    shown = corefw("serve", str(broken), "--port", "0")
    assert shown.returncode == 1
    assert "broken.gguf" in shown.stderr
    assert "Traceback" not in shown.stderr
