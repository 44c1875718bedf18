"""Whoever fails while an engine starts is named, wherever the engine called it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from corefw.builtins.attention.torch_attention import TorchAttention
from corefw.builtins.kv_cache_specs.full_attention import FullAttention
from corefw.builtins.model_loaders.safetensors import SafetensorsLoader
from corefw.builtins.schedulers.default import DefaultScheduler
from corefw.config.args import UserArgs
from corefw.config.model_info import ModelInfo
from corefw.engine.llm_engine import LLMEngine
from corefw.errors import PluginError, PluginUnavailable
from corefw.frontend.prepare import prepare
from corefw.interfaces.io_processor import IOContext, IOProcessor
from corefw.interfaces.kv_cache import FullAttentionSpec, KVCacheSpec
from corefw.interfaces.scheduler import SchedulingDecision
from corefw.plugin_system.manager import PluginManager
from corefw.plugin_system.starting import starting
from corefw.testing.configs import fake_config
from corefw.testing.fake_executor import FakeExecutor
from corefw.testing.pytest_plugin import RegisterPlugin


def broken(*_: object, **__: object) -> Any:
    raise KeyError("table")


class NoExecutor(FakeExecutor):
    __init__ = broken


class UnreadyExecutor(FakeExecutor):
    def initialize(self, plan: object) -> None:
        raise KeyError("table")


class EndingExecutor(FakeExecutor):
    def reports(self) -> Any:
        raise SystemExit("table")


class WithoutArguments(FakeExecutor):
    def __init__(self) -> None:
        raise AssertionError("it is called with two")


class Absent(FakeExecutor):
    def __init__(self) -> None:
        raise PluginUnavailable("no device")


class NoScheduler(DefaultScheduler):
    __init__ = broken


class NoStrategy(SchedulingDecision):
    __init__ = broken


class OwnSpec(FullAttentionSpec):
    pass


class NoManager(FullAttention):
    spec_class: ClassVar[type[KVCacheSpec]] = OwnSpec
    __init__ = broken


class NoBackend(TorchAttention):
    name = "falls"

    @classmethod
    def implementation(cls, *_: object, **__: object) -> Any:
        raise KeyError("table")


class NoWeights(SafetensorsLoader):
    name = "falls"

    def weights(self, info: ModelInfo, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        del info, dtype
        yield "model.norm.weight", torch.ones(48)
        raise KeyError("table")


class NoModel(torch.nn.Module):
    __init__ = broken


class NoProcessor(IOProcessor):
    name = "falls"

    def __init__(self, setup: object) -> None:
        raise KeyError("table")

    def parse(self, context: IOContext) -> None:
        """Nothing gets here."""

    def pre_process(self, context: IOContext) -> Any:
        """Nothing gets here."""


def failed(group: str, cause: str = "KeyError: 'table'") -> str:
    return rf"^plugin 'falls' \({group}\) of acme( 1.0)? (failed at its start|can't be made): {cause}"


IN_PLACE = r"KeyError: 'table' \(tests/plugin_system/test_starting.py:\d+\)$"


@pytest.mark.parametrize(
    ("group", "value", "option", "cause"),
    [
        ("executors", NoExecutor, "distributed_executor_backend", IN_PLACE),
        ("executors", UnreadyExecutor, "distributed_executor_backend", IN_PLACE),
        ("executors", EndingExecutor, "distributed_executor_backend", "SystemExit: table"),
        ("executors", WithoutArguments, "distributed_executor_backend", "TypeError: .* takes 1 positional argument"),
        ("schedulers", NoScheduler, "scheduler", IN_PLACE),
        ("scheduler_strategies", NoStrategy, "scheduling_policy", IN_PLACE),
        ("kv_cache_specs", NoManager, None, "KeyError: 'table'"),
    ],
)
def test_what_fails_in_the_engine_is_named(
    register_plugin: RegisterPlugin, group: str, value: type, option: str | None, cause: str
) -> None:
    register_plugin(group, "falls", value, distribution="acme")
    plugins = PluginManager.discover()
    config = fake_config(resolved=plugins.resolved(), **({option: "falls"} if option else {}))
    with pytest.raises(PluginError, match=failed(group, cause)):
        LLMEngine(config, plugins)


@pytest.mark.parametrize(
    ("group", "value", "options"),
    [
        ("attention_backends", NoBackend, {"attention_backend": "falls"}),
        ("model_loaders", NoWeights, {"load_format": "falls"}),
    ],
)
def test_what_fails_in_the_worker_is_named(
    register_plugin: RegisterPlugin, tiny_model: Path, group: str, value: type, options: dict[str, Any]
) -> None:
    register_plugin(group, "falls", value, distribution="acme")
    prepared = prepare(UserArgs.from_keywords(model=str(tiny_model), **options))
    with pytest.raises(PluginError, match=failed(group, IN_PLACE)):
        LLMEngine(prepared.config, prepared.plugins)


def test_a_model_that_cannot_be_built_is_named(
    register_plugin: RegisterPlugin, tiny_model: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "model")
    described = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(described | {"architectures": ["falls"]}))
    register_plugin("model_plugins", "falls", NoModel, distribution="acme")
    prepared = prepare(UserArgs.from_keywords(model=str(model)))
    with pytest.raises(PluginError, match=failed("model_plugins", IN_PLACE)):
        LLMEngine(prepared.config, prepared.plugins)


def test_what_fails_in_the_front_end_is_named(register_plugin: RegisterPlugin, tiny_model: Path) -> None:
    register_plugin("io_processor_plugins", "falls", NoProcessor, distribution="acme")
    with pytest.raises(PluginError, match=failed("io_processor_plugins", IN_PLACE)):
        prepare(UserArgs.from_keywords(model=str(tiny_model), plugins="+falls", io_processor_plugin="falls"))


def test_an_own_class_that_is_no_plugin_is_named_as_it_was_given() -> None:
    given = f"{__name__}:NoExecutor"
    config = fake_config(resolved=PluginManager.discover().resolved(), distributed_executor_backend=given)
    with pytest.raises(PluginError, match=rf"^'{given}' \(executors\) failed at its start: KeyError: 'table'"):
        LLMEngine(config, PluginManager.discover())


def loaded(register: RegisterPlugin, *values: tuple[str, str, type]) -> PluginManager:
    for group, name, value in values:
        register(group, name, value, distribution=f"of-{name}")
    plugins = PluginManager.discover()
    for group, name, _ in values:
        plugins.get(group, name)
    return plugins


def raised(plugins: PluginManager, call: Callable[[], object], group: str = "", name: str = "") -> str:
    with pytest.raises(PluginError) as caught, starting(plugins, group, name):
        call()
    return str(caught.value)


def test_whose_code_raised_is_to_blame_and_not_who_called_it(register_plugin: RegisterPlugin) -> None:
    plugins = loaded(
        register_plugin, ("executors", "outer", UnreadyExecutor), ("attention_backends", "inner", NoBackend)
    )

    def nested() -> None:
        with starting(plugins, "executors", "outer"):
            NoBackend.implementation()

    assert "plugin 'inner' (attention_backends) of of-inner 1.0 failed" in raised(plugins, nested)


def test_what_core_and_built_in_code_raises_stays_as_it_is() -> None:
    plugins = PluginManager.discover()
    with pytest.raises(KeyError), starting(plugins, "executors", "uni"):
        broken()
    with pytest.raises(KeyError), starting(plugins):
        broken()


def test_a_plugin_that_is_unavailable_at_its_start_is_named(register_plugin: RegisterPlugin) -> None:
    plugins = loaded(register_plugin, ("executors", "absent", Absent))
    told = raised(plugins, Absent)
    assert told == "plugin 'absent' (executors) of of-absent 1.0 is unavailable: no device"
