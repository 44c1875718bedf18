"""Installed plugins of the front end on a real server: requests on their way, doors beside it, figures."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from corefw.testing.server_process import Server, launch, serving, stop
from tests.sample_plugins.install import install_sample

_FLAGS = ["--dtype", "float32", "--kv-cache-memory", "512MiB", "--served-model-name", "demo", "--log-format", "json"]
_ALLOWED = "+house_rules,+redact,+lines,+haiku,+file"
_CHAT = {"messages": [{"role": "user", "content": "Who was Ada Lovelace?"}], "temperature": 0, "max_tokens": 12}


@dataclass
class Site:
    path: Path
    server: Server

    def chat(self, **fields: object) -> httpx.Response:
        return httpx.post(f"{self.server.url}/v1/chat/completions", json={**_CHAT, **fields}, timeout=120)

    def lines(self, prompt: str) -> list[str]:
        port = int((self.path / "port").read_text())
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(f"{prompt}\n".encode())
            return connection.makefile().read().splitlines()

    def stats(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.path / "stats").read_text().splitlines()]

    def log(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.server.log.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    for sample in ("gate", "doors", "stats"):
        install_sample(sample, folder)
    env = {
        "PYTHONPATH": str(folder),
        "COREFW_SAMPLE_PORT": str(folder / "port"),
        "COREFW_SAMPLE_STATS": str(folder / "stats"),
    }
    with serving(*_FLAGS, "--plugins", _ALLOWED, "--allow-route-override", "stamp", env=env) as server:
        yield Site(folder, server)


def test_a_chat_is_edited_before_the_template(site: Site) -> None:
    given = [{"role": "system", "content": "Answer in upper case."}, *_CHAT["messages"]]  # type: ignore[misc]
    edited, same = site.chat().json(), site.chat(messages=given).json()
    assert edited["usage"]["prompt_tokens"] == same["usage"]["prompt_tokens"]
    assert edited["choices"] == same["choices"]


def test_a_request_is_refused_with_its_field_and_the_plugin_logs_it(site: Site) -> None:
    answer = site.chat(max_tokens=501)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("max_tokens", "house_rules")
    assert error["message"] == "this house gives 500 tokens at most"
    (line,) = [entry for entry in site.log() if entry.get("plugin") == "corefw_sample_gate.house_rules"]
    assert line["message"] == "refused a request of /v1/chat/completions"
    assert line["process"] == "front-end"


@pytest.mark.parametrize("fields", [{}, {"stop": ["poet", "mathematic"]}])
def test_texts_are_changed_alike_streamed_and_whole(site: Site, fields: dict[str, object]) -> None:
    whole = site.chat(n=2, **fields).json()
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    streamed = ["", ""]
    for line in site.chat(n=2, stream=True, **fields).text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                streamed[choice["index"]] += choice["delta"].get("content", "")
    assert streamed == texts
    assert "***" in texts[0]
    assert not any(word[:1].isupper() for word in texts[0].split())


def test_what_hides_text_hides_its_tokens(site: Site) -> None:
    for field in ("logprobs", "return_token_ids"):
        answer = site.chat(**{field: True})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == field
        assert "corefw-sample-gate/redact" in answer.json()["error"]["message"]


def test_layers_stand_around_all_routes_and_around_one(site: Site) -> None:
    models, version = httpx.get(f"{site.server.url}/v1/models"), httpx.get(f"{site.server.url}/version")
    assert models.headers["x-sample-everywhere"] == version.headers["x-sample-everywhere"] == "1"
    assert models.headers["x-sample-models"] == "1"
    assert "x-sample-models" not in version.headers


def test_what_a_layer_raises_is_an_error_without_its_details(site: Site) -> None:
    busy = httpx.get(f"{site.server.url}/version", headers={"x-sample-fail": "busy"})
    assert busy.status_code == 503 or busy.status_code == 429
    assert busy.json()["error"]["code"] == "capacity"
    bug = httpx.get(f"{site.server.url}/version", headers={"x-sample-fail": "bug"})
    assert bug.status_code == 500
    assert "secret" not in bug.text


def test_an_endpoint_and_another_protocol_generate_through_everything(site: Site) -> None:
    haiku = httpx.post(f"{site.server.url}/plugins/haiku/write", json={"subject": "rain"}, timeout=60).json()
    assert haiku["text"]
    refused = httpx.post(f"{site.server.url}/plugins/haiku/write", json={"subject": "rain", "max_tokens": 501})
    assert refused.json()["error"]["code"] == "house_rules"
    *pieces, end = site.lines("The capital of France is")
    assert end == ""
    assert "***" in "".join(map(json.loads, pieces))


def test_stat_loggers_get_steps_and_requests_with_their_tags(site: Site) -> None:
    site.chat(metadata={"team": "a"}, max_tokens=3)
    site.lines("Hello")
    deadline = time.monotonic() + 20
    while not {"chat", "lines", "steps"} <= _seen(site.stats()):
        assert time.monotonic() < deadline, site.stats()
        time.sleep(0.05)
    (told,) = [entry for entry in site.stats() if entry.get("tags") == {"team": "a"}]
    assert told == {"route": "/v1/chat/completions", "tags": {"team": "a"}, "tokens": 3, "error": None}
    assert site.chat(metadata={"team": "a" * 513}).json()["error"]["param"] == "metadata"


def _seen(entries: list[dict[str, object]]) -> set[str]:
    seen = {"steps" for entry in entries if "steps" in entry}
    return (
        seen
        | {"chat" for entry in entries if entry.get("tags") == {"team": "a"}}
        | {"lines" for entry in entries if entry.get("tags") == {"door": "lines"}}
    )


def test_a_failing_stat_logger_is_quarantined_and_nobody_waits_for_it(site: Site) -> None:
    for _ in range(3):
        assert site.chat(max_tokens=1).status_code == 200
    deadline = time.monotonic() + 20
    while not [line for line in site.log() if "corefw-sample-stats/failing" in str(line) and line["level"] == "ERROR"]:
        assert time.monotonic() < deadline, site.server.log
        time.sleep(0.05)


def test_what_nobody_permitted_is_not_used_and_says_so(tmp_path: Path) -> None:
    install_sample("doors", tmp_path)
    env = {"PYTHONPATH": str(tmp_path), "COREFW_SAMPLE_PORT": str(tmp_path / "port")}
    with serving(*_FLAGS, env=env) as server:
        assert "x-sample-models" not in httpx.get(f"{server.url}/v1/models").headers
        assert not (tmp_path / "port").exists()
        assert httpx.post(f"{server.url}/plugins/haiku/write", json={"subject": "rain"}).status_code == 404
        choices = {each["what"]: each["reason"] for each in httpx.get(f"{server.url}/plugins").json()["selections"]}
    assert choices["route wrapper stamp"] == "not permitted; --allow-route-override stamp does"
    assert choices["protocol server lines"] == "not permitted; --plugins +lines does"


async def test_another_protocol_drains_with_the_server(tmp_path: Path) -> None:
    install_sample("doors", tmp_path)
    install_sample("stats", tmp_path)
    stats = tmp_path / "stats"
    env = {
        "PYTHONPATH": str(tmp_path),
        "COREFW_SAMPLE_PORT": str(tmp_path / "port"),
        "COREFW_SAMPLE_MAX": "400",
        "COREFW_SAMPLE_STATS": str(stats),
    }
    flags = [*_FLAGS, "--plugins", "lines, file", "--shutdown-timeout", "1"]
    server = await asyncio.to_thread(launch, *flags, env=env)
    reader, writer = await asyncio.open_connection("127.0.0.1", int((tmp_path / "port").read_text()))
    writer.write(b"Once upon a time\n")
    assert await reader.readline()
    stopping = asyncio.create_task(asyncio.to_thread(stop, server))
    rest = (await reader.read()).decode().splitlines()
    assert await stopping == 0
    assert rest[-1] == ""
    assert rest[-2].startswith("error: ") or len(rest) > 300
    assert json.loads(stats.read_text().splitlines()[-1]) == {"closed": True}
    writer.close()
