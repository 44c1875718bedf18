"""As a new author works: the scaffold of each kind, checked, and all of them at once in a real server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from corefw.cli.plugins.kinds import KINDS as SCAFFOLDS
from corefw.testing.registration import write_metadata
from corefw.testing.server_process import Server, serving
from corefw.testing.tiny_models import llama_tensors, tiny_llama_config, write_tiny_tokenizer

KINDS = {
    "platform": "a-platform",
    "attention-backend": "an-attention",
    "op-provider": "an-op",
    "kv-connector": "a-connector",
    "io-processor": "a-processor",
    "endpoint": "an-endpoint",
    "general": "a-general",
    "logits-processor": "a-logits",
    "strategy": "a-strategy",
    "scheduler": "a-scheduler",
    "executor": "an-executor",
    "core-launcher": "a-launcher",
    "kv-cache-spec": "a-spec",
    "model": "AuthorsForCausalLM",
    "loader": "a-loader",
    "stat-logger": "a-logger",
}
# Those whose group has no choice to make: they serve when they are loaded.
UNCHOSEN = {"endpoint", "general", "stat-logger", "kv-cache-spec"}
KEY = "sesame"


def corefw(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "corefw.cli.main", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("projects")
    for kind, name in KINDS.items():
        done = corefw("plugins", "new", kind, name, "--directory", kind, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def site(projects: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which all of them are installed."""
    folder = tmp_path_factory.mktemp("site")
    for kind in KINDS:
        project = tomllib.loads((projects / kind / "pyproject.toml").read_text())["project"]
        write_metadata(folder, project["name"], project["version"], project["entry-points"])
        (package,) = (projects / kind).glob("corefw_*")
        shutil.copytree(package, folder / package.name)
    return folder


@pytest.fixture(scope="module")
def server(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """All of them in one: the loader's format, the model's architecture, on the platform, through the connector."""
    model = tmp_path_factory.mktemp("model")
    config = tiny_llama_config(architectures=[KINDS["model"]])
    (model / "config.json").write_text(json.dumps(config))
    np.savez(model / "tensors.npz", **{name: tensor.numpy() for name, tensor in llama_tensors(config).items()})
    write_tiny_tokenizer(model)
    store = tmp_path_factory.mktemp("store")
    flags = {
        "--served-model-name": "demo",
        "--api-key": KEY,
        "--dtype": "float32",
        "--num-gpu-blocks-override": "200",
        "--platform": KINDS["platform"],
        "--attention-backend": KINDS["attention-backend"],
        "--kv-connector": KINDS["kv-connector"],
        "--kv-connector-config": json.dumps({"path": str(store)}),
        "--io-processor-plugin": KINDS["io-processor"],
        "--logits-processors": KINDS["logits-processor"],
        "--scheduling-policy": KINDS["strategy"],
        "--scheduler": KINDS["scheduler"],
        "--distributed-executor-backend": KINDS["executor"],
        "--data-parallel-backend": KINDS["core-launcher"],
        "--plugins": f"+{KINDS['endpoint']}",
        f"--{KINDS['general']}.max-prompt-tokens": "100",
    }
    words = [word for flag in flags.items() for word in flag]
    with serving(f"{KINDS['loader']}:{model}", *words, env={"PYTHONPATH": str(site)}) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {KEY}"}, timeout=120) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_project_is_clean_passes_its_tests_and_the_suite(projects: Path, kind: str) -> None:
    folder = projects / kind
    for command in (["ruff", "check", "."], ["pytest", "-q", "-p", "no:cacheprovider"]):
        words = [sys.executable, "-m", *command]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    checked = corefw("plugins", "check", ".", "--json", cwd=folder)
    report = json.loads(checked.stdout)
    results = [case["result"] for plugin in report["plugins"] for case in plugin["cases"]]
    assert (checked.returncode, report["problems"], set(results)) == (0, [], {"holds"}), checked.stdout


@pytest.mark.slow
def test_all_of_them_are_loaded_in_one_server(server: Server, client: httpx.Client) -> None:
    body = {"model": "demo", "prompt": "ab" * 20, "max_tokens": 4, "metadata": {"team": "blue"}}
    assert client.post("/v1/completions", json=body).status_code == 200
    states = {(plugin["group"], plugin["name"]): plugin["state"] for plugin in client.get("/plugins").json()["plugins"]}
    unchosen = {group for kind in UNCHOSEN for group in SCAFFOLDS[kind].entries}
    expected = {
        (group, name): "loaded" if group in unchosen else "active"
        for kind, name in KINDS.items()
        for group in SCAFFOLDS[kind].entries
    }
    assert {key: states.get(key) for key in expected} == expected


@pytest.mark.slow
def test_each_of_them_does_its_work(server: Server, client: httpx.Client) -> None:
    asked = client.post("/plugins/an-endpoint/ask", json={"question": "Why?", "max_tokens": 4})
    assert asked.status_code == 200
    assert asked.json()["answer"]
    mistyped = client.post("/plugins/an-endpoint/ask", json={"question": "Why?", "max_tokens": "4"})
    assert (mistyped.status_code, mistyped.json()["error"]["param"]) == (400, "max_tokens")
    refused = client.post("/v1/completions", json={"model": "demo", "prompt": "x" * 101, "max_tokens": 1})
    assert (refused.status_code, "101 tokens" in refused.text) == (400, True)
    plain = {"model": "demo", "prompt": "abc", "max_tokens": 1, "temperature": 0, "return_token_ids": True}
    (token,) = client.post("/v1/completions", json=plain).json()["choices"][0]["token_ids"]
    wrong = client.post("/v1/completions", json={**plain, "vllm_xargs": {"a-logits": "7"}})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "vllm_xargs.a-logits")
    banned = client.post("/v1/completions", json={**plain, "vllm_xargs": {"a-logits": [token]}})
    assert banned.json()["choices"][0]["token_ids"] != [token]
    tagged = {**plain, "prompt": "tagged", "metadata": {"team": "blue"}}
    assert client.post("/v1/completions", json=tagged).status_code == 200
    processed = client.post("/v1/completions", json={"model": "demo", "data": {"questions": ["Why?"]}, "max_tokens": 4})
    assert [pair["question"] for pair in processed.json()["data"]["answers"]] == ["Why?"], processed.text
    assert "team blue has generated" in server.log
    assert "short steps answer sooner" in server.log
