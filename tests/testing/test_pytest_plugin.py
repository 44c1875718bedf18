"""The fixtures that authors get."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from corefw.builtins.platforms.cpu import CpuPlatform
from corefw.errors import PluginError
from corefw.plugin_system.discovery import find_plugins
from corefw.plugin_system.manager import PluginManager
from corefw.testing.asgi_client import AsgiClient
from corefw.testing.in_process_server import scripted_text

Register = Callable[..., None]


class Mine(CpuPlatform):
    name = "mine"


def test_a_registered_plugin_is_found_and_gone_after_the_test(pytester_run: Callable[[str], str]) -> None:
    out = pytester_run(
        """
from corefw.builtins.platforms.cpu import CpuPlatform
from corefw.plugin_system.discovery import find_plugins

class Mine(CpuPlatform):
    name = "mine"

def names():
    return {plugin.name for plugin in find_plugins()}

def test_first(register_plugin):
    register_plugin("platform_plugins", "mine", Mine)
    assert "mine" in names()

def test_second():
    assert "mine" not in names()
"""
    )
    assert "2 passed" in out


@pytest.fixture
def pytester_run(tmp_path: Path) -> Callable[[str], str]:
    def run(source: str) -> str:
        (tmp_path / "test_mine.py").write_text(source)
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        return done.stdout + done.stderr

    return run


def test_a_class_of_a_test_can_be_registered(register_plugin: Register) -> None:
    class Local(CpuPlatform):
        name = "local_class"

    register_plugin("platform_plugins", "local_class", Local)
    register_plugin("platform_plugins", "mine", Mine)
    manager = PluginManager.discover("local_class, mine")
    assert manager.get("platform_plugins", "local_class") is Local
    assert manager.get("platform_plugins", "mine") is Mine


def test_what_is_registered_is_denied_and_judged_as_ever(register_plugin: Register) -> None:
    register_plugin("endpoint_plugins", "mine", Mine)
    assert "mine" not in PluginManager.discover().names("endpoint_plugins")
    with pytest.raises(PluginError, match="doesn't derive from"):
        PluginManager.discover("+mine").get("endpoint_plugins", "mine")
    with pytest.raises(PluginError, match="no plugin group"):
        register_plugin("endpoints", "other", Mine)


def test_children_find_it_too(register_plugin: Register) -> None:
    register_plugin("platform_plugins", "mine", "somewhere:Mine")
    code = "from corefw.plugin_system.discovery import find_plugins; print([p.value for p in find_plugins()])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "somewhere:Mine" in done.stdout
    assert "somewhere:Mine" in {plugin.value for plugin in find_plugins()}


def test_the_server_answers_in_this_process(serve_in_process: Callable[..., AsgiClient]) -> None:
    client = serve_in_process(engine=scripted_text("Hello"))
    answer = client.post("/v1/completions", {"prompt": "a", "max_tokens": 20})
    assert answer.json()["choices"][0]["text"] == "Hello"
    streamed = client.post("/v1/completions", {"prompt": "a", "max_tokens": 20, "stream": True})
    assert streamed.events()[-1] == "[DONE]"
    assert client.request("GET", "/v1/models", headers={"authorization": "Bearer wrong"}).status == 401


def test_the_tiny_model_is_there(tiny_model: Path) -> None:
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in tiny_model.iterdir()}
