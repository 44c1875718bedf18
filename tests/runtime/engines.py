"""A tiny Llama with random weights, its configuration and its worker."""

from __future__ import annotations

from pathlib import Path

from corefw.config.args import UserArgs
from corefw.config.engine_config import EngineConfig
from corefw.engine.resolver import resolve_config
from corefw.plugin_system.manager import PluginManager
from corefw.testing.tiny_models import write_tiny_llama


def tiny_config(
    directory: Path, plugins: PluginManager, *, padded_vocab_size: int | None = None, **settings: object
) -> EngineConfig:
    """float32, steps of up to 64 tokens, 8 requests at once, unless ``settings`` say otherwise."""
    path = directory / f"tiny-{padded_vocab_size}"
    if not path.exists():
        write_tiny_llama(path, **({"vocab_size": padded_vocab_size} if padded_vocab_size else {}))
    defaults = {"model": str(path), "dtype": "float32", "max_num_batched_tokens": 64, "max_num_seqs": 8}
    return resolve_config(UserArgs.from_keywords(**(defaults | settings)), plugins)
