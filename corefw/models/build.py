"""From a configuration to a built model: chooses the attention backend and the op providers, then loads the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corefw.models.layers.context import BuildContext, TensorParallel

if TYPE_CHECKING:
    import torch
    from torch import nn

    from corefw.config.engine_config import EngineConfig
    from corefw.interfaces.selection import Selection
    from corefw.plugin_system.manager import PluginManager

__all__ = ["build_model", "make_build_context"]


def make_build_context(
    config: EngineConfig, device: torch.device, plugins: PluginManager, tp: TensorParallel | None = None
) -> tuple[BuildContext, tuple[Selection, ...]]:
    """Ask platform, backends and providers once.

    Returns:
        what layers are built with, and what was chosen and why. Ops are recorded as layers bind them: see
        ``BuildContext.binder.selections`` once the model is built.
    """
    raise NotImplementedError


def build_model(config: EngineConfig, build: BuildContext, plugins: PluginManager) -> nn.Module:
    """The model of ``config.model_info``, weights loaded, in evaluation mode, without gradients."""
    raise NotImplementedError
