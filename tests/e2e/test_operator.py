"""What an operator sets: names, a unix socket, JSON logs, and refusals before anything starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.server.certificates import authority

pytestmark = pytest.mark.model
COMMAND = [sys.executable, "-m", "corefw.cli.main", "serve"]
KEY = "very-secret-key"


def test_names_socket_and_logs_of_one_server(tmp_path: Path) -> None:
    path, log_path = tmp_path / "corefw.sock", tmp_path / "log"
    flags = ["--uds", str(path), "--kv-cache-memory", "64MiB", "--log-format", "json", "--log-level", "DEBUG"]
    flags += ["--access-log", "--api-key", KEY, "--served-model-name", "first", "--served-model-name", "second"]
    with log_path.open("wb") as log:
        process = subprocess.Popen([*COMMAND, *flags], stdout=subprocess.PIPE, stderr=log)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"corefw is ready on unix:{path}\n".encode()
        _ask_under_each_name(path)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert not path.exists()
    _check_log(log_path.read_text())


def _ask_under_each_name(path: Path) -> None:
    transport = httpx.HTTPTransport(uds=str(path))
    headers = {"Authorization": f"Bearer {KEY}", "X-Request-Id": "from-the-test"}
    with httpx.Client(transport=transport, base_url="http://x", headers=headers, timeout=60) as client:
        assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["first", "second"]
        for asked, told in (("first", "first"), ("second", "second"), (None, "first")):
            body = {"prompt": "a private prompt", "max_tokens": 1} | ({"model": asked} if asked else {})
            assert client.post("/v1/completions", json=body).json()["model"] == told
        assert client.post("/v1/completions", json={"prompt": "a", "model": "third"}).status_code == 404


def _check_log(log: str) -> None:
    entries = [json.loads(line) for line in log.splitlines()]
    assert all(entry["process"] in ("front-end", "core") for entry in entries)
    assert all(entry["time"].endswith("Z") and entry["level"] and entry["logger"] for entry in entries)
    accesses = [entry for entry in entries if entry.get("path") == "/v1/completions"]
    assert [entry["status"] for entry in accesses] == [200, 200, 200, 404]
    assert {entry["request_id"] for entry in accesses} == {"from-the-test"}
    assert KEY not in log
    assert "private prompt" not in log


def refusal(*flags: str, **variables: str) -> str:
    """The sentence of a start that must end before anything slow."""
    begun = time.monotonic()
    ended = subprocess.run(
        [*COMMAND, *flags], capture_output=True, text=True, timeout=60, env={**os.environ, **variables}
    )
    assert ended.returncode == 1, ended.stderr
    assert time.monotonic() - begun < 10
    (line,) = ended.stderr.splitlines()
    return line


def test_a_wrong_setting_is_one_sentence_before_the_engine_starts(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("precious")
    assert "--uds and --host or --port are two addresses" in refusal("--uds", str(tmp_path / "x"), "--port", "0")
    assert "is no socket; it is left as it is" in refusal("--uds", str(taken))
    assert taken.read_text() == "precious"
    pair, other = authority(tmp_path, "one"), authority(tmp_path, "other")
    files = ("--ssl-certfile", pair.cert, "--ssl-keyfile", other.key)
    assert "doesn't belong to the certificate" in refusal("--port", "0", *files)
    assert "COREFW_API_KEY can't be sent in a header" in refusal("--port", "0", COREFW_API_KEY="schlüssel")
    credentials = ("--allowed-origins", "*", "--allow-credentials")
    assert "would let every page act for its visitors" in refusal("--port", "0", *credentials)
