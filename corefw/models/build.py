"""From a configuration to a built model: chooses the attention backend and the op providers, then loads the weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from corefw.errors import ConfigError, ModelFormatError
from corefw.interfaces.attention import AttentionRequest
from corefw.interfaces.model import ModelRequest
from corefw.interfaces.selection import Selection
from corefw.models.layers.context import BuildContext, Stage, TensorParallel
from corefw.models.layers.product import name_weights, prepare_weights
from corefw.models.loading.chain import LoadingChain
from corefw.models.ops.binder import OpBinder
from corefw.models.quantization import plan_quantization, tell_layers
from corefw.models.registry import NATIVE, model_class
from corefw.models.shape import has_sliding_window, head_size
from corefw.models.weights_cache.cache import WeightsCache
from corefw.observability.logging import get_logger
from corefw.plugin_system.making import made_by_plugin, whose
from corefw.plugin_system.selection import select
from corefw.plugin_system.starting import created, starting

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.config.model_info import ModelInfo
    from corefw.interfaces.model import ModelImplementation
    from corefw.interfaces.model_loader import ModelLoader
    from corefw.interfaces.platform import Platform
    from corefw.plugin_system.manager import PluginManager

__all__ = ["build_model", "choose_attention", "is_batch_invariant", "make_build_context", "make_model", "tensors_of"]

_BACKENDS = "attention_backends"

_log = get_logger(__name__)


def make_build_context(
    config: EngineConfig,
    device: torch.device,
    plugins: PluginManager,
    tp: TensorParallel | None = None,
    stage: Stage | None = None,
) -> tuple[BuildContext, tuple[Selection, ...]]:
    """Ask platform, backends and providers once.

    Returns:
        what layers are built with, and what was chosen and why. Ops are recorded as layers bind them: see
        ``BuildContext.binder.selections`` once the model is built.

    Raises:
        ConfigError: no attention backend fits; names each reason.
    """
    batch_invariant = is_batch_invariant(config)
    platform: Platform = created(plugins, "platform_plugins", config.platform)
    selection = choose_attention(config, platform, device.type, plugins)
    binder = OpBinder(
        [plugin.create() for plugin in plugins.load_all("op_providers")],
        device_type=device.type,
        dtype=config.dtype,
        batch_invariant=batch_invariant,
    )
    quantization, held = plan_quantization(config, binder, device.type, plugins)
    build = BuildContext(
        device=device,
        dtype=getattr(torch, config.dtype),
        dtype_name=config.dtype,
        batch_invariant=batch_invariant,
        binder=binder,
        tp=tp or TensorParallel(),
        attention_backend=plugins.get(_BACKENDS, selection.chosen),
        max_model_len=config.max_model_len,
        kv_dtype_name=_kv_dtype(config),
        hybrid_kv=config.cache.hybrid_kv_cache,
        stage=stage or Stage(),
        quantization=quantization,
    )
    return build, (selection, *held)


def build_model(config: EngineConfig, build: BuildContext, plugins: PluginManager) -> nn.Module:
    """The model of ``config.model_info``, weights loaded, in evaluation mode, without gradients.

    Raises:
        ConfigError: the architecture is unknown, or can't be built as configured.
        ModelFormatError: the checkpoint doesn't fit the configuration.
    """
    chain = LoadingChain.of(config, plugins)
    cache = None if chain else WeightsCache.of(config, build)
    kept = None if cache is None else cache.find()
    if cache is not None and kept is not None:
        model = _make_complete(config, dataclasses.replace(build, holds_weights=False), plugins)
        remarks = cache.restore(model, kept)
    if kept is None or remarks is None:
        model = _make_complete(config, build, plugins)
        remarks = _load(config, build, model, chain, plugins)
        if cache is not None:
            cache.keep(model, build, remarks)
    for remark in remarks:
        _log.warning("%s", remark)
    return model


def _make_complete(config: EngineConfig, build: BuildContext, plugins: PluginManager) -> nn.Module:
    """The model without its weights; its layers know their names, and the quantisation method knows the layers."""
    model = make_model(config, build, plugins)
    if build.stage.size > 1 and not getattr(model, "has_stages", False):
        raise ConfigError(
            f"--pipeline-parallel-size {build.stage.size}: the model class {type(model).__name__} of "
            f"{config.model_info.architecture[:80]} can't hold a part of its layers (it doesn't declare has_stages = "
            "True); leave the flag out, or use --tensor-parallel-size"
        )
    name_weights(model)
    if build.quantization is not None:
        for selection in tell_layers(model, build.quantization):
            plugins.record(selection)
    return model.eval().requires_grad_(False)


def _load(
    config: EngineConfig, build: BuildContext, model: Any, chain: LoadingChain, plugins: PluginManager
) -> Sequence[str]:
    """From the model's files, and laid out as kernels want it; returns what the operator should know of it."""
    info = config.model_info
    loader: ModelLoader = created(plugins, "model_loaders", info.loader)
    with starting(plugins, "model_loaders", info.loader):
        weights = _weights(loader, model, build, info, chain)
        if chain:
            _load_through(chain, model, weights, loader.name, plugins)
        else:
            model.load_weights(weights)
    prepare_weights(model)
    return () if build.quantization is None else build.quantization.converter.remarks()


def _weights(
    loader: ModelLoader, model: nn.Module, build: BuildContext, info: ModelInfo, chain: LoadingChain
) -> Iterator[tuple[str, Any]]:
    """In blocks where the model's layers take blocks and no plugin changes tensors on their way."""
    plan = build.quantization
    if plan is None or not getattr(model, "accepts_blocks", False):
        return loader.weights(info, build.dtype)
    if chain.transforms:
        _log.info("weights: dequantised, since a plugin transforms them")
        return loader.weights(info, build.dtype)
    return loader.weights_in_blocks(info, build.dtype, plan.types)


def tensors_of(model: nn.Module) -> Iterator[torch.Tensor]:
    """Every tensor that a model's modules hold: parameters, buffers, and prepared weights, which are neither."""
    for module in model.modules():
        held = (*module.parameters(recurse=False), *module.buffers(recurse=False), *vars(module).values())
        yield from (value for value in held if isinstance(value, torch.Tensor))


def _load_through(
    chain: LoadingChain,
    model: Any,
    weights: Iterator[tuple[str, torch.Tensor]],
    loader: str,
    plugins: PluginManager,
) -> None:
    plugins.record(Selection("weights", chain.links(loader), "plugins take part in loading"))
    _log.info("weights: %s", chain.links(loader))
    try:
        model.load_weights(chain.apply(weights))
    except ModelFormatError as error:
        raise ModelFormatError(f"{error} (loaded through {chain.links(loader)}: {chain.outcome()})") from error
    _log.info("weights: %s", chain.outcome())


def is_batch_invariant(config: EngineConfig) -> bool:
    """Whether a token's result must not depend on the rest of the batch."""
    return config.dtype == "float32"  # the order is always fixed there


def make_model(config: EngineConfig, build: BuildContext, plugins: PluginManager) -> nn.Module:
    """The model without its weights."""
    info, name = config.model_info, config.model_implementation
    if name == NATIVE:
        cls = model_class(info.architecture, plugins)
        with starting(plugins, "model_plugins", info.architecture):
            model = cls(info, build)
        plugins.record(Selection("model", info.architecture, "the checkpoint's architecture"))
        return model
    request = ModelRequest(info=info, dtype=config.dtype, trust_remote_code=config.model.trust_remote_code)
    implementation: ModelImplementation = created(plugins, "model_implementations", name)
    with starting(plugins, "model_implementations", name):
        return implementation.build(request, build)


def choose_attention(config: EngineConfig, platform: Platform, device_type: str, plugins: PluginManager) -> Selection:
    """Ask the attention backends, in the platform's order.

    Raises:
        ConfigError: none fits; names each reason.
    """
    hf_config = config.model_info.hf_config
    request = AttentionRequest(
        device_type=device_type,
        dtype=config.dtype,
        kv_dtype=_kv_dtype(config),
        head_size=head_size(hf_config),
        block_size=config.cache.block_size,
        sliding_window=has_sliding_window(hf_config),
        soft_cap=bool(hf_config.get("attn_logit_softcapping")),
        batch_invariant=is_batch_invariant(config),
    )
    order = made_by_plugin(whose(plugins, "platform_plugins", platform.name), Sequence, platform.attention_order)
    names = _in_order(order, plugins.names(_BACKENDS))
    return select(
        "attention backend",
        [(name, _asking(plugins, name, request)) for name in names],
        named=config.compilation.attention_backend,
    )


def _kv_dtype(config: EngineConfig) -> str:
    given = config.cache.kv_cache_dtype
    return config.dtype if given == "auto" else given


def _in_order(preferred: Sequence[str], installed: Sequence[str]) -> list[str]:
    """The platform's order; backends it doesn't know come after."""
    return [*(n for n in preferred if n in installed), *(n for n in installed if n not in preferred)]


def _asking(plugins: PluginManager, name: str, request: AttentionRequest) -> Callable[[], str | None]:
    def supports() -> str | None:
        backend = plugins.get(_BACKENDS, name)
        with starting(plugins, _BACKENDS, name):
            reason: str | None = backend.capabilities.supports(request)
        return reason

    return supports
