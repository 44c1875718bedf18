"""What corefw ships passes the suites that it gives to others."""

from __future__ import annotations

from pathlib import Path

import pytest

from corefw.builtins.attention.torch_attention import TorchAttention
from corefw.builtins.executors.mp import MpExecutor
from corefw.builtins.executors.uni import UniExecutor
from corefw.builtins.kv_cache_specs.full_attention import FullAttention
from corefw.builtins.kv_cache_specs.sliding_window import SlidingWindow
from corefw.builtins.model_loaders.gguf import GGUFLoader
from corefw.builtins.model_loaders.safetensors import SafetensorsLoader
from corefw.builtins.model_sources.gguf_file import GGUFFile
from corefw.builtins.model_sources.local import LocalDirectory
from corefw.builtins.ops.torch_ops import TorchOps
from corefw.builtins.platforms.cpu import CpuPlatform
from corefw.builtins.quantization.gguf import GGUFBlocks
from corefw.builtins.quantization.online import OnlineMethod
from corefw.builtins.schedulers.fcfs import FirstComeFirstServed
from corefw.builtins.schedulers.priority import Priority
from corefw.config.model_info import ModelFiles, ModelInfo
from corefw.engine.child_launcher import ChildLauncher
from corefw.engine.scheduler.scheduler import DefaultScheduler
from corefw.interfaces.kv_cache import SlidingWindowSpec
from corefw.models.llama import LlamaForCausalLM
from corefw.plugin_system.groups import GROUPS
from corefw.sdk.devices import DeviceIds
from corefw.testing.attention_suite import AttentionBackendSuite
from corefw.testing.configs import fake_model_info
from corefw.testing.core_launcher_suite import CoreLauncherSuite
from corefw.testing.executor_suite import ExecutorSuite
from corefw.testing.kv_cache_spec_suite import KVCacheSpecSuite
from corefw.testing.model_loader_suite import ModelLoaderSuite
from corefw.testing.model_source_suite import ModelSourceSuite
from corefw.testing.model_suite import ModelSuite
from corefw.testing.op_provider_suite import OpProviderSuite
from corefw.testing.platform_suite import PlatformSuite
from corefw.testing.quantization_suite import QuantizationMethodSuite
from corefw.testing.scheduler_suite import SchedulerSuite, SchedulingDecisionSuite
from corefw.testing.suites import SUITES, suite_of
from corefw.testing.tiny_models import write_tiny_llama
from tests.models.loading.tiny_gguf import llama_arrays, write_llama


class BoardPlatform(CpuPlatform):
    """Whose devices have numbers."""

    name = "boards"

    def device_ids(self) -> DeviceIds | None:
        return DeviceIds(variable="BOARDS", visible=(5, 3), names=("5", "3"), assigned=(3, 5), narrowed=True)


class TestBoardPlatform(PlatformSuite):
    plugin = BoardPlatform
    plugin_name = "boards"
    torch_free = False  # this file isn't


class TestCpuPlatform(PlatformSuite):
    plugin = CpuPlatform


@pytest.mark.slow
class TestTorchAttention(AttentionBackendSuite):
    plugin = TorchAttention


class TestTorchOps(OpProviderSuite):
    plugin = TorchOps


class TestGGUFBlocks(QuantizationMethodSuite):
    plugin = GGUFBlocks

    def model_info(self) -> ModelInfo:
        return fake_model_info(quantization="gguf", block_types=("Q4_1", "Q8_0"))


class TestOnlineMethod(QuantizationMethodSuite):
    plugin = OnlineMethod
    asked = "int4_per_group"


@pytest.mark.slow
class TestMpExecutor(ExecutorSuite):
    plugin = MpExecutor


@pytest.mark.slow
class TestChildLauncher(CoreLauncherSuite):
    plugin = ChildLauncher


class TestUniExecutor(ExecutorSuite):
    plugin = UniExecutor


class TestDefaultScheduler(SchedulerSuite):
    plugin = DefaultScheduler


class TestFirstComeFirstServed(SchedulingDecisionSuite):
    plugin = FirstComeFirstServed


class TestPriority(SchedulingDecisionSuite):
    plugin = Priority


class TestFullAttention(KVCacheSpecSuite):
    plugin = FullAttention


class TestSlidingWindow(KVCacheSpecSuite):
    plugin = SlidingWindow

    def spec(self) -> SlidingWindowSpec:
        return SlidingWindowSpec(block_size=4, num_kv_heads=2, head_size=8, dtype="float32", sliding_window=9)


class TestLlama(ModelSuite):
    plugin = LlamaForCausalLM


class TestSafetensorsLoader(ModelLoaderSuite):
    plugin = SafetensorsLoader


class TestGGUFLoader(ModelLoaderSuite):
    plugin = GGUFLoader

    def make_files(self, folder: Path) -> ModelFiles:
        path = str(write_llama(folder / "tiny.gguf", llama_arrays()))
        return ModelFiles(reference=path, source="gguf_file", root=str(folder), weights=(path,))


class TestLocalDirectory(ModelSourceSuite):
    plugin = LocalDirectory

    def make_reference(self, folder: Path) -> str:
        return str(write_tiny_llama(folder))


class TestGGUFFile(ModelSourceSuite):
    plugin = GGUFFile

    def make_reference(self, folder: Path) -> str:
        return str(write_llama(folder / "tiny.gguf", llama_arrays()))


def test_every_group_that_is_in_use_has_a_suite() -> None:
    assert set(SUITES) == {group.name for group in GROUPS if not group.reserved}
    assert all(suite_of(group).__module__.startswith("corefw.testing.") for group in SUITES)
