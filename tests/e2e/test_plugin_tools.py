"""The tools as an operator meets them, with distributions installed: doctor, explain, a running server's report."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from corefw.cli.plugins.scaffold import Project, write_project
from corefw.testing.server_process import Server, serving
from corefw.testing.tiny_models import write_tiny_llama
from tests.cli.commands import corefw
from tests.plugin_system.conftest import Site
from tests.policy.sources import ROOT

KEY = "key-of-the-test"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tools-tiny"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A folder with good and bad distributions, on the path of what is started with it."""
    site = Site(tmp_path_factory.mktemp("tools-site"))
    for sample in ("accelerator", "endpoint", "general"):
        site.install(sample)
    return site


@pytest.fixture(scope="module")
def environment(installed: Site) -> dict[str, str]:
    return {"PYTHONPATH": str(installed.path), "COREFW_SAMPLE_LOG": str(installed.path / "processes.log")}


@pytest.fixture(scope="module")
def server(tiny: Path, environment: dict[str, str]) -> Iterator[Server]:
    flags = ("--dtype", "float32", "--kv-cache-memory", "16MiB", "--api-key", KEY, "--plugins", "+echo")
    with serving(str(tiny), *flags, env=environment) as running:
        yield running


def explained(*words: str, env: dict[str, str]) -> dict[str, Any]:
    shown = corefw("explain", *words, "--json", env=env)
    assert shown.returncode == 0, shown.stderr
    answer: dict[str, Any] = json.loads(shown.stdout)
    return answer


def choice(answer: dict[str, Any], what: str) -> dict[str, Any]:
    (found,) = (selection for selection in answer["selections"] if selection["what"] == what)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("page", ["platform", "io_processor"])
def test_what_the_pages_show_of_explaining_is_what_it_prints(page: str, tiny: Path, tmp_path: Path) -> None:
    site = Site(tmp_path / "site")
    site.path.mkdir()
    site.install("colours")
    _install_new_platform(site, tmp_path / "board")
    text = (ROOT / "docs" / "plugins" / f"{page}.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    for command, shown in re.findall(r"^\$ corefw explain MODEL ?(.*)\n((?:[^$\n].*\n)+)", block, re.MULTILINE):
        printed = corefw("explain", str(tiny), *command.split(), env={"PYTHONPATH": str(site.path)}).stdout
        assert all(part in printed for part in shown.strip("…\n").split("…\n")), printed
    assert block.count("$ corefw explain MODEL") == block.count("$ ") > 1


def _install_new_platform(site: Site, project: Path) -> None:
    written = Project("platform", "my-board")
    write_project(written, project)
    declared = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    site.metadata(written.distribution, declared["version"], declared["entry-points"])
    shutil.copytree(project / written.package, site.path / written.package)


def test_explaining_tells_the_io_processor_and_why_the_others_do_not_serve(tiny: Path, tmp_path: Path) -> None:
    site = Site(tmp_path / "site")
    site.path.mkdir()
    site.install("colours")
    env = {"PYTHONPATH": str(site.path)}
    none = choice(explained(str(tiny), env=env), "IO processor")
    assert (none["chosen"], none["rejected"]["form"]) == ("none", "not asked: nobody names it")
    named = choice(explained(str(tiny), "--io-processor-plugin", "form", env=env), "IO processor")
    assert (named["chosen"], named["reason"]) == ("form", "the value of --io-processor-plugin")
    assert "form" not in named["rejected"]


def test_the_servers_report_has_every_plugin_in_both_processes_behind_the_key(server: Server) -> None:
    assert httpx.get(f"{server.url}/plugins").status_code == 401
    answered = httpx.get(f"{server.url}/plugins", headers={"Authorization": f"Bearer {KEY}"}).raise_for_status()
    report = answered.json()
    rows = {(p["group"], p["name"]): p for p in report["plugins"]}
    assert rows["general_plugins", "process_log"]["processes"]["engine_core"]["state"] == "loaded"
    assert rows["general_plugins", "process_log"]["processes"]["front_end"]["state"] == "loaded"
    assert rows["platform_plugins", "bigchip"]["state"] == "unused"
    assert rows["platform_plugins", "bigchip"]["reason"] == "no BigChip is plugged in"
    assert rows["executors", "uni"]["state"] == "active"
    assert rows["attention_backends", "torch"]["state"] == "active"
    assert "bigchip_flash" in {name for s in report["selections"] for name in s["rejected"]}
    assert report["missing_processes"] == {}
    assert report["quarantined"] == []


def test_the_log_of_the_start_names_the_plugins_that_serve(server: Server) -> None:
    assert "plugin corefw-sample-endpoint/echo 1.0 (endpoint_plugins): loaded in front_end" in server.log
    assert (
        "plugin corefw-sample-general/process_log 1.0 (general_plugins): loaded in front_end, engine_core" in server.log
    )
    assert "plugin corefw/cpu" not in server.log


def test_the_metrics_have_the_plugins_states(server: Server) -> None:
    text = httpx.get(f"{server.url}/metrics", headers={"Authorization": f"Bearer {KEY}"}).text
    rows = [line for line in text.splitlines() if line.startswith("corefw:plugin_info{")]
    assert any(
        'name="bigchip",' in row and 'group="platform_plugins"' in row and 'state="unused"' in row for row in rows
    )
    assert any('name="uni",' in row and 'state="active"' in row for row in rows)


def test_the_doctor_compares_a_server_with_its_environment(
    server: Server, environment: dict[str, str], tmp_path: Path
) -> None:
    same = corefw(
        "plugins", "doctor", str(_no_plugins(tmp_path)), "--url", server.url, "--api-key", KEY, env=environment
    )
    assert same.returncode == 0, same.stdout
    assert "nothing to mend" in same.stdout
    other = {**environment, "PYTHONPATH": ""}
    differing = corefw(
        "plugins", "doctor", str(_no_plugins(tmp_path)), "--url", server.url, "--api-key", KEY, "--json", env=other
    )
    findings = json.loads(differing.stdout)["findings"]
    assert differing.returncode == 1
    assert {finding["kind"] for finding in findings} == {"processes differ"}
    assert any("corefw-sample-endpoint/echo is known to the server (1.0)" in f["what"] for f in findings)
    assert all(finding["where"] and finding["remedy"] for finding in findings)


def _no_plugins(folder: Path) -> Path:
    (folder / "pyproject.toml").write_text('[project]\nname = "nothing"\n')
    return folder


def test_the_doctor_finds_what_is_wrong_and_fails(tmp_path: Path) -> None:
    site = Site(tmp_path / "site")
    site.path.mkdir()
    site.install("broken")
    site.metadata("corefw-sample-gone", "1.0", {"corefw.general_plugins": {"gone": "corefw_gone"}}, suffix="egg-info")
    allowed = "corefw-sample-gone/*,corefw-sample-broken/import_fails,corefw-sample-broken/misspelt"
    shown = corefw(
        "plugins", "doctor", str(_no_plugins(tmp_path)), "--plugins", allowed, env={"PYTHONPATH": str(site.path)}
    )
    assert shown.returncode == 1
    assert "not installed: general_plugins: corefw-sample-gone/gone" in shown.stdout
    assert "(corefw_sample_broken/import_fails.py:3)" in shown.stdout
    assert shown.stdout.count("  where:  ") == shown.stdout.count("  remedy: ") > 3


def test_explaining_names_every_candidate_with_its_reason_and_reads_no_weights(
    tiny: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    for file in tiny.iterdir():  # weights that can't be read: a header, and nothing after it
        content = file.read_bytes()
        if file.suffix == ".safetensors":
            header = 8 + int.from_bytes(content[:8], "little")
            content = content[:header] + bytes(len(content) - header)
        (tmp_path / file.name).write_bytes(content)
    answer = explained(
        str(tmp_path), "--dtype", "float32", "--api-key", KEY, env={**environment, "HF_TOKEN": "my-token"}
    )
    assert choice(answer, "platform")["rejected"] == {"bigchip": "no BigChip is plugged in"}
    assert choice(answer, "attention backend")["chosen"] == "torch"
    assert choice(answer, "attention backend")["rejected"]
    assert choice(answer, "model loader")["chosen"] == "safetensors"
    assert choice(answer, "scheduling policy")["rejected"] == {"priority": "not asked: --scheduling-policy is fcfs"}
    endpoints = choice(answer, "endpoint_plugins")
    assert "openai_chat" in endpoints["chosen"]
    assert endpoints["rejected"]["corefw-sample-endpoint/echo"].startswith("denied by default")
    ops = [selection for selection in answer["selections"] if selection["what"].startswith("op linear")]
    assert ops
    assert {"op drawn", "op most_likely"} <= {selection["what"].split(" (")[0] for selection in answer["selections"]}
    assert all(op["rejected"]["bigchip"] == "made for a BigChip, not for cpu" for op in ops)
    assert answer["settings"]["server.api_key"] == "(set)"
    assert KEY not in json.dumps(answer)
    assert answer["problem"] is None


def test_a_device_that_isnt_here_is_explained_from_its_capability_file(
    tiny: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "bigchip.yaml"
    file.write_text("platform: bigchip\nname: BigChip 2\ncapability: 2.0\nmemory: 80GiB\n")
    answer = explained(str(tiny), "--dtype", "bfloat16", "--capability-file", str(file), env=environment)
    assert choice(answer, "platform")["chosen"] == "bigchip"
    assert choice(answer, "attention backend")["chosen"] == "bigchip_flash"
    linear = next(s for s in answer["selections"] if s["what"].startswith("op linear"))
    norm = next(s for s in answer["selections"] if s["what"].startswith("op rms_norm"))
    assert linear["chosen"] == "bigchip"
    assert norm["rejected"]["bigchip"] == "only matrix products"
    assert ("scheduler.max_num_batched_tokens", "8192") in {(d["what"], d["chosen"]) for d in answer["decisions"]}


def test_what_couldnt_start_is_explained_with_the_reason(
    tiny: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "bigchip.yaml"
    file.write_text("platform: bigchip\ncapability: 2.0\n")
    flags = ("--capability-file", str(file))
    failing = corefw("explain", str(tiny), "--dtype", "float32", *flags, env=environment)
    assert failing.returncode == 1
    assert "not bigchip_flash: dtype float32 not among bfloat16" in failing.stderr
    assert "platform: bigchip" in failing.stdout
    file.write_text("platform: bigchip\n")
    undescribed = corefw("explain", str(tiny), *flags, env=environment)
    assert undescribed.returncode == 1
    assert "needs the key capability" in undescribed.stderr
