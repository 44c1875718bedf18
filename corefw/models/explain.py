"""What a worker would choose for a model, asked in a process of its own: no weights, no device. Imports torch late.

``python -m corefw.models.explain FILE`` reads a request from standard input and writes the answer to the file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from corefw.errors import CorefwError
from corefw.messages.control_channel import follow_search_path
from corefw.plugin_system.manager import PluginManager
from corefw.plugin_system.process_report import describe
from corefw.plugin_system.worker_question import WorkerAnswer, WorkerQuestion

if TYPE_CHECKING:
    from corefw.config.device_description import DeviceDescription
    from corefw.config.engine_config import EngineConfig
    from corefw.interfaces.attention import AttentionImpl
    from corefw.interfaces.platform import Platform
    from corefw.models.layers.context import BuildContext

__all__: list[str] = []


def _answer(question: WorkerQuestion) -> WorkerAnswer:
    config = question.config
    plugins = PluginManager.from_resolved(config.plugins.resolved, config.plugins.plugin_policy)
    problem = None
    try:
        _choose(config, question.described, plugins)
    except CorefwError as error:
        problem = str(error)
    except Exception as error:  # a plugin's class, or a model that needs a real device to be built
        problem = f"not all ops are known, since the model can't be built without a device: {error}"
    return WorkerAnswer(selections=describe(plugins, "worker").selections, problem=problem)


def _choose(config: EngineConfig, described: DeviceDescription | None, plugins: PluginManager) -> None:
    from corefw.models.build import choose_attention, make_model
    from corefw.models.layers.product import name_weights
    from corefw.models.quantization import tell_layers

    plugins.load_general("worker")
    platform_class = plugins.get("platform_plugins", config.platform)
    platform: Platform = platform_class() if described is None else platform_class.from_capability(described)
    attention = choose_attention(config, platform, platform.device_type, plugins)
    plugins.record(attention)
    build = _build_context(config, platform, plugins)
    try:
        model = make_model(config, build, plugins)
        build.binder.bind("drawn")  # as the sampler does
        if build.quantization is not None:
            name_weights(model)
            for selection in tell_layers(model, build.quantization):
                plugins.record(selection)
    finally:
        for selection in build.binder.selections:
            plugins.record(selection)


def _build_context(config: EngineConfig, platform: Platform, plugins: PluginManager) -> BuildContext:
    """On torch's device without memory, with kernels that are only asked for."""
    import torch

    from corefw.models.build import is_batch_invariant
    from corefw.models.layers.context import BuildContext, TensorParallel
    from corefw.models.ops.binder import AskingBinder
    from corefw.models.quantization import plan_quantization

    batch_invariant = is_batch_invariant(config)
    backend: Any = _NoKernels
    binder = AskingBinder(
        [plugin.create() for plugin in plugins.load_all("op_providers")],
        device_type=platform.device_type,
        dtype=config.dtype,
        batch_invariant=batch_invariant,
    )
    quantization, held = plan_quantization(config, binder, platform.device_type, plugins)
    for selection in held:
        plugins.record(selection)
    return BuildContext(
        device=torch.device("meta"),
        dtype=getattr(torch, config.dtype),
        dtype_name=config.dtype,
        batch_invariant=batch_invariant,
        binder=binder,
        tp=TensorParallel(),
        attention_backend=backend,
        max_model_len=config.max_model_len,
        hybrid_kv=config.cache.hybrid_kv_cache,
        quantization=quantization,
    )


class _NoKernels:
    """Where the attention backend stands that was chosen: its kernels may need what isn't here."""

    @classmethod
    def implementation(cls, *_: object, **__: object) -> AttentionImpl | None:
        return None


def _main(file: str) -> None:
    question = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=WorkerQuestion)
    follow_search_path(question.search_path)
    Path(file).write_bytes(msgspec.json.encode(_answer(question)))


if __name__ == "__main__":
    _main(sys.argv[1])
