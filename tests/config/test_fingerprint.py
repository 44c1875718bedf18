"""The fingerprint changes with what is computed, and with nothing else."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from corefw.config.engine_config import CacheConfig, EngineConfig, PluginConfig, ResolvedPlugin, SchedulerConfig
from corefw.config.fingerprint import fingerprint_of
from corefw.config.model_info import ModelFiles
from tests.engine.scheduler.setup import make_config


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(3 * 2**20))
    return with_files(make_config(), weights)


def with_files(config: EngineConfig, path: Path, sha256: str | None = None) -> EngineConfig:
    files = ModelFiles(reference="x", source="local", root="/", weights=(str(path),), sha256=sha256)
    return replace(config, model_info=replace(config.model_info, files=files))


def with_plugin(config: EngineConfig, group: str, version: str) -> EngineConfig:
    plugin = ResolvedPlugin(group=group, name="p", value="v", distribution="d", version=version)
    return replace(config, plugins=PluginConfig(resolved=(plugin,)))


def test_it_is_the_same_for_the_same(config: EngineConfig) -> None:
    assert len(fingerprint_of(config)) == 64
    assert fingerprint_of(config) == fingerprint_of(replace(config, scheduler=SchedulerConfig(max_num_seqs=3)))


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "bfloat16"},
        {"platform": "other"},
        {"cache": CacheConfig(kv_cache_dtype="int8")},
        {"plugin_settings": {"p": {"x": 1}}},
        {"model_implementation": "transformers"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_it_changes_with_the_arithmetic_and_with_plugins_settings(
    config: EngineConfig, change: dict[str, object]
) -> None:
    assert fingerprint_of(replace(config, **change)) != fingerprint_of(config)  # type: ignore[arg-type]


def test_it_changes_with_what_a_plugin_adds(config: EngineConfig) -> None:
    first, second = (fingerprint_of(config, [("p", text)]) for text in "ab")
    assert len({fingerprint_of(config), first, second}) == 3


def test_it_changes_with_the_version_of_plugins_that_compute_alone(config: EngineConfig) -> None:
    def of(group: str, version: str) -> str:
        return fingerprint_of(with_plugin(config, group, version))

    assert of("attention_backends", "1") != of("attention_backends", "2")
    assert of("endpoint_plugins", "1") == of("endpoint_plugins", "2")


def test_it_changes_with_the_files(config: EngineConfig) -> None:
    path = Path(config.model_info.files.weights[0])
    before, stat = fingerprint_of(config), path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    changed = fingerprint_of(config)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert len({before, changed, fingerprint_of(config)}) == 3


def test_a_known_hash_stands_for_the_files_wherever_they_lie(config: EngineConfig, tmp_path: Path) -> None:
    here, there = (with_files(config, tmp_path / name, "a" * 64) for name in ("here", "there"))
    assert fingerprint_of(here) == fingerprint_of(there)
