"""Chooses where the tokenizer comes from: what the operator named, else the model's own files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from corefw.frontend.tokenizer.directory import tokenizer_from_path
from corefw.frontend.tokenizer.disk_cache import TokenizerCache
from corefw.frontend.tokenizer.gguf_vocabulary import tokenizer_from_gguf
from corefw.models.loading.gguf_file import GGUFFile, has_gguf_magic, shared_file

if TYPE_CHECKING:
    from corefw.config.engine_config import FrontendConfig, ModelConfig
    from corefw.config.model_info import ModelInfo
    from corefw.frontend.tokenizer.base import Tokenizer

__all__ = ["load_tokenizer", "open_gguf"]


def load_tokenizer(info: ModelInfo, model: ModelConfig, frontend: FrontendConfig) -> Tokenizer:
    """The tokenizer of a model.

    Args:
        info: where the model's files lie.
        model: ``tokenizer`` overrides the model's own.
        frontend: whether built tokenizers are kept on disk.

    Raises:
        ConfigError: there is none, or it can't be used; names the remedy.
    """
    gguf = None if model.tokenizer is not None else open_gguf(info)
    if gguf is None:
        return tokenizer_from_path(
            Path(model.tokenizer or info.files.root).expanduser(),
            default_bos_id=info.bos_id,
            default_eos_ids=info.eos_ids,
            keep_converted=frontend.tokenizer_cache,
        )
    return tokenizer_from_gguf(gguf.metadata, TokenizerCache(bytes(gguf.header), enabled=frontend.tokenizer_cache))


def open_gguf(info: ModelInfo) -> GGUFFile | None:
    """The model's GGUF file, or None when it is of another format."""
    weights = info.files.weights
    return shared_file(*weights) if weights and has_gguf_magic(weights[0]) else None
