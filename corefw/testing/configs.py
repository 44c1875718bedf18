"""Configurations without files behind them, for engines that run the fake executor."""

from __future__ import annotations

import dataclasses
from typing import Any

from corefw.config.engine_config import (
    CacheConfig,
    CompilationConfig,
    EngineConfig,
    FrontendConfig,
    KVTransferConfig,
    LoadConfig,
    ModelConfig,
    ParallelConfig,
    PluginConfig,
    SchedulerConfig,
)
from corefw.config.model_info import ModelFiles, ModelInfo

__all__ = ["FAKE_EXECUTOR", "fake_config", "fake_model_info"]

FAKE_EXECUTOR = "corefw.testing.fake_executor:FakeExecutor"

_DEFAULTS = {
    "model": "fake",
    "distributed_executor_backend": FAKE_EXECUTOR,
    "block_size": 4,
    "num_gpu_blocks_override": 256,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 64,
}
_SECTIONS = {
    "model": ModelConfig,
    "load": LoadConfig,
    "cache": CacheConfig,
    "kv_transfer": KVTransferConfig,
    "scheduler": SchedulerConfig,
    "parallel": ParallelConfig,
    "compilation": CompilationConfig,
    "plugins": PluginConfig,
    "frontend": FrontendConfig,
}


def fake_config(**overrides: Any) -> EngineConfig:
    """A small engine: the fake executor, blocks of 4 tokens, 16 requests at once.

    Args:
        overrides: fields of any section, or of ``ModelInfo``, by their own names (``max_num_seqs=2``,
            ``vocab_size=50``, ``resolved=plugins.resolved()``).

    Raises:
        TypeError: there is no such field.
    """
    values = _DEFAULTS | overrides
    sections = {name: owner(**_take(values, owner)) for name, owner in _SECTIONS.items()}
    info = fake_model_info(**_take(values, ModelInfo))
    if values:
        raise TypeError(f"no section of the configuration has a field {', '.join(values)}")
    return EngineConfig(**sections, model_info=info, dtype="float32", platform="cpu")


def fake_model_info(**overrides: Any) -> ModelInfo:
    """A model of 1000 token ids and 512 positions whose end token is 0, and that has no files."""
    values: dict[str, Any] = {
        "files": ModelFiles(reference="fake", source="fake", root="/nonexistent", weights=()),
        "loader": "fake",
        "architecture": "FakeForCausalLM",
        "hf_config": {"num_hidden_layers": 2, "hidden_size": 16},
        "checkpoint_dtype": "float32",
        "max_position": 512,
        "vocab_size": 1000,
        "eos_ids": (0,),
    }
    return ModelInfo(**(values | overrides))


def _take(values: dict[str, Any], owner: type) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(owner) if field.name in values]
    return {name: values.pop(name) for name in names}
