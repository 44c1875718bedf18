from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from corefw.builtins.attention.torch_attention import TorchAttention
from corefw.builtins.model_loaders.safetensors import SafetensorsLoader
from corefw.builtins.model_sources.local import LocalDirectory
from corefw.config.engine_config import (
    CacheConfig,
    CompilationConfig,
    EngineConfig,
    FrontendConfig,
    LoadConfig,
    ModelConfig,
    ParallelConfig,
    PluginConfig,
    SchedulerConfig,
)
from corefw.errors import ConfigError
from corefw.interfaces.model_source import SourceOptions
from corefw.models.build import build_model, make_build_context
from corefw.models.registry import architectures, check_architecture
from corefw.plugin_system.manager import PluginManager
from corefw.testing.paged_loop import PagedLoop
from corefw.testing.tiny_models import write_tiny_llama
from tests.models.threads import one_thread  # noqa: F401

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def plugins() -> PluginManager:
    return PluginManager.discover("")  # the built-in ones, whatever is installed


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


def config(directory: Path, *, dtype: str = "float32", backend: str | None = None, **cache: Any) -> EngineConfig:
    files = LocalDirectory().resolve(str(directory), SourceOptions(cache_dir=str(directory / "cache")))
    return EngineConfig(
        model=ModelConfig(model=str(directory)),
        load=LoadConfig(),
        cache=CacheConfig(**cache),
        scheduler=SchedulerConfig(),
        parallel=ParallelConfig(),
        compilation=CompilationConfig(attention_backend=backend),
        plugins=PluginConfig(),
        frontend=FrontendConfig(),
        model_info=SafetensorsLoader().read_info(files),
        dtype=dtype,
        platform="cpu",
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_is_built_from_files_by_plugins_alone(directory: Path, plugins: PluginManager, dtype: str) -> None:
    settings = config(directory, dtype=dtype)
    build, selections = make_build_context(settings, CPU, plugins)
    model = build_model(settings, build, plugins)
    assert [(s.what, s.chosen) for s in selections] == [("attention backend", "torch")]
    assert build.attention_backend is TorchAttention
    assert build.batch_invariant is (dtype == "float32")
    assert {s.chosen for s in build.binder.selections} == {"torch"}
    assert [s.chosen for s in plugins.selections if s.what == "model"][-1] == "LlamaForCausalLM"
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {getattr(torch, dtype)}
    logits = PagedLoop(model, build).step({0: [1, 2, 3], 1: [4]})
    assert logits[0].shape == (3, 259)
    assert bool(logits[1].isfinite().all())


def test_layers_learn_whether_the_allocator_gives_back_what_windows_left(
    directory: Path, plugins: PluginManager
) -> None:
    for hybrid in (True, False):
        build, _ = make_build_context(config(directory, hybrid_kv_cache=hybrid), CPU, plugins)
        assert build.hybrid_kv is hybrid


def test_the_two_arithmetics_agree_roughly(directory: Path, plugins: PluginManager) -> None:
    results = []
    for dtype in ("float32", "bfloat16"):
        settings = config(directory, dtype=dtype)
        build, _ = make_build_context(settings, CPU, plugins)
        loop = PagedLoop(build_model(settings, build, plugins), build)
        loop.step({0: list(range(60)), 1: list(range(9))})
        results.append(loop.step({0: [7], 1: [8]})[0].float())
    assert torch.nn.functional.cosine_similarity(*results).min() > 0.99


def test_a_backend_that_does_not_exist_is_refused_by_name(directory: Path, plugins: PluginManager) -> None:
    with pytest.raises(ConfigError, match="'flash'"):
        make_build_context(config(directory, backend="flash"), CPU, plugins)


def test_a_device_without_a_backend_is_refused_with_the_reason(directory: Path, plugins: PluginManager) -> None:
    with pytest.raises(ConfigError, match="device meta not among cpu"):
        make_build_context(config(directory), torch.device("meta"), plugins)


def test_an_unknown_architecture_is_refused_with_the_known_ones(plugins: PluginManager) -> None:
    assert "LlamaForCausalLM" in architectures(plugins)
    check_architecture("MistralForCausalLM", plugins)
    with pytest.raises(ConfigError, match=r"'NoSuchForCausalLM'.*LlamaForCausalLM, MistralForCausalLM"):
        check_architecture("NoSuchForCausalLM", plugins)


def test_the_registry_and_the_sizes_import_without_torch() -> None:
    code = "import sys, corefw.models.registry, corefw.models.shape; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
