"""The start reads regular files alone: a pipe in their place is an error at once, not a wait."""

from __future__ import annotations

import gc
import os
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

from corefw.config.args import UserArgs
from corefw.config.engine_config import ResolvedPlugin
from corefw.errors import ConfigError, PluginError
from corefw.frontend.prepare import prepare, prepare_again
from corefw.frontend.sampling_defaults import SamplingDefaults
from corefw.models.loading import gguf_file
from corefw.models.loading.gguf_file import GGUFFile
from corefw.testing.tiny_models import write_tiny_llama
from tests.frontend.vocabularies import byte_level_metadata
from tests.models.loading.tiny_gguf import llama_arrays, write_llama

pytestmark = pytest.mark.timeout(60)
_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "model")


def test_a_whole_directory_is_read(model: Path) -> None:
    assert prepare(UserArgs.from_keywords(model=str(model))).config.tokenizer_size


@pytest.mark.parametrize("name", _FILES)
def test_a_pipe_among_a_models_files_is_refused_by_name(model: Path, name: str) -> None:
    (model / name).unlink(missing_ok=True)
    os.mkfifo(model / name)
    with pytest.raises(ConfigError, match=name):
        prepare(UserArgs.from_keywords(model=str(model)))


@pytest.mark.parametrize("setting", ["tokenizer", "chat_template", "generation_config", "model"])
def test_a_pipe_that_a_setting_names_is_refused(model: Path, tmp_path: Path, setting: str) -> None:
    pipe = tmp_path / ("pipe.gguf" if setting == "model" else "pipe")
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match=str(pipe)):
        _start({"model": str(model), setting: str(pipe)})


def _start(settings: dict[str, str]) -> None:
    """All that reads files: the generation configuration comes last."""
    prepared = prepare(UserArgs.from_keywords(**settings))
    SamplingDefaults.of_model(prepared.config.model, prepared.config.model_info)


def test_a_pipe_among_gguf_files_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    with pytest.raises(ConfigError, match="gguf"):
        prepare(UserArgs.from_keywords(model=str(tmp_path)))


def test_another_process_prepares_the_same_again(model: Path) -> None:
    first = prepare(UserArgs.from_keywords(model=str(model)))
    again = prepare_again(first.config)
    assert again.config == first.config
    assert again.renderer.render_text("hello", param="prompt") == first.renderer.render_text("hello", param="prompt")


def test_a_header_is_read_once_while_a_start_is_prepared_and_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[weakref.ref[GGUFFile]] = []

    class Watched(GGUFFile):
        def __init__(self, *paths: str | Path) -> None:
            super().__init__(*paths)
            opened.append(weakref.ref(self))

    monkeypatch.setattr(gguf_file, "GGUFFile", Watched)
    path = write_llama(tmp_path / "words.gguf", llama_arrays(), metadata=byte_level_metadata())
    config = prepare(UserArgs.from_keywords(model=str(path))).config
    gc.collect()
    assert [file() for file in opened] == [None]
    prepare_again(config)
    gc.collect()
    assert [file() for file in opened] == [None, None]


def test_another_process_without_the_plugins_refuses(model: Path) -> None:
    config = prepare(UserArgs.from_keywords(model=str(model))).config
    foreign = ResolvedPlugin(group="schedulers", name="x", value="x:X", distribution="elsewhere", version="1")
    plugins = replace(config.plugins, resolved=(*config.plugins.resolved, foreign))
    with pytest.raises(PluginError, match="elsewhere"):
        prepare_again(replace(config, plugins=plugins))
