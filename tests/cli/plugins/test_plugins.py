"""``corefw plugins list``, ``info`` and ``lock`` as an operator runs them."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from benchmarks.plugin_discovery import seconds, write_distributions
from tests.cli.commands import corefw
from tests.sample_plugins.install import install_sample


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the commands find plugins in."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    return tmp_path


def test_listing_is_fast_and_many_distributions_hardly_slow_it_down(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    many = tmp_path_factory.mktemp("many")
    write_distributions(many, 100)
    alone, crowded = seconds(tmp_path, 5), seconds(many, 5)
    assert min(alone) < 3 * 0.3
    assert min(crowded) - min(alone) < 3 * 0.05, (statistics.median(alone), statistics.median(crowded))


def test_json_has_every_plugin_with_its_state(site: Path) -> None:
    install_sample("endpoint", site)
    shown = json.loads(corefw("plugins", "list", "--json").stdout)
    rows = {(row["group"], row["name"]): row for row in shown["plugins"]}
    assert rows["platform_plugins", "cpu"]["state"] == "found"
    assert rows["endpoint_plugins", "echo"]["state"] == "denied by default"
    assert shown["problems"] == []


def test_a_problem_is_shown_and_is_the_exit_status(site: Path) -> None:
    done = corefw("plugins", "list", "--json", "--plugins", "+ecko")
    assert (done.returncode, len(json.loads(done.stdout)["problems"])) == (1, 1)
    assert "problem: --plugins names 'ecko'" in done.stderr


def test_loading_tells_who_crashed_and_who_is_reserved(site: Path) -> None:
    install_sample("broken", site)
    words = ("--plugins", "logits_processors:crashes,logits_processors:wanders")
    done = corefw("plugins", "list", "--load", "--json", *words)
    rows = {(row["group"], row["name"]): (row["state"], row["reason"]) for row in json.loads(done.stdout)["plugins"]}
    assert rows["logits_processors", "crashes"] == ("failed", "it ended the process that loaded it (SIGKILL)")
    assert rows["logits_processors", "wanders"][0] == "loaded"
    assert rows["platform_plugins", "cpu"][0] == "loaded"
    assert rows["proposers", "too_early"][0] == "unavailable"
    assert rows["model_loaders", "from_a_later_range"][0] == "incompatible"
    assert done.returncode == 1
    assert "corefw-sample-broken/crashes (logits_processors) is failed" in done.stderr


def test_info_has_all_that_is_known_of_a_plugin(site: Path) -> None:
    install_sample("endpoint", site)
    (info,) = json.loads(corefw("plugins", "info", "endpoint_plugins:echo", "--json").stdout)
    assert (info["distribution"], info["version"], info["state"]) == (
        "corefw-sample-endpoint", "1.0", "denied by default",
    )  # fmt: skip
    assert info["interface"] == "corefw.interfaces.endpoint:Endpoint"
    assert info["accepted interface"] == "1"
    assert str(site / "corefw_sample_endpoint" / "echo.py") in info["files"]
    assert info["metadata"] == str(site / "corefw_sample_endpoint-1.0.dist-info")
    text = corefw("plugins", "info", "corefw-sample-endpoint/echo", "--load", "--plugins", "echo").stdout
    assert [line.split()[1] for line in text.splitlines() if line.startswith("state:")] == ["loaded"]


def test_info_about_a_wrong_name_names_the_nearest(site: Path) -> None:
    done = corefw("plugins", "info", "platform_plugins:cpuu")
    assert done.returncode == 1
    assert "did you mean platform_plugins:cpu" in done.stderr


def test_a_lock_is_the_same_twice_and_refuses_another_set(site: Path) -> None:
    lock = site / "plugins.lock.json"
    assert corefw("plugins", "lock", str(lock)).returncode == 0
    assert corefw("plugins", "lock").stdout == lock.read_text(encoding="utf-8")
    assert corefw("plugins", "list", "--plugin-lock", str(lock)).returncode == 0
    install_sample("general", site)
    done = corefw("serve", str(site / "no-model"), "--port", "0", "--plugin-lock", str(lock))
    assert done.returncode == 1
    assert "extra: corefw-sample-general 1.0" in done.stderr
    assert "no-model" not in done.stderr
