"""Configurations as plugins read them: frozen values, as resolved."""

from __future__ import annotations

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
    ServerConfig,
)
from corefw.config.model_info import ModelFiles, ModelInfo
from corefw.config.runtime_plan import RuntimePlan

__all__ = [
    "CacheConfig",
    "CompilationConfig",
    "EngineConfig",
    "FrontendConfig",
    "LoadConfig",
    "ModelConfig",
    "ModelFiles",
    "ModelInfo",
    "ParallelConfig",
    "PluginConfig",
    "RuntimePlan",
    "SchedulerConfig",
    "ServerConfig",
]
