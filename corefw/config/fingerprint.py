"""The fingerprint of a configuration: two engines that share it compute the same KV for the same tokens."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corefw import __version__

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig, ResolvedPlugin
    from corefw.config.model_info import ModelFiles

__all__ = ["fingerprint_of"]

_SAMPLE_BYTES = 2**20
_SHA256 = re.compile(r"[0-9a-f]{64}")
# Plugins of these groups take part in what is computed. General plugins may hold hooks that change weights.
_COMPUTING = frozenset(
    {
        "general_plugins",
        "platform_plugins",
        "model_loaders",
        "model_plugins",
        "model_implementations",
        "model_extensions",
        "attention_backends",
        "op_providers",
        "quantization_methods",
    }
)


def fingerprint_of(config: EngineConfig, additions: Iterable[tuple[str, str]] = ()) -> str:
    """Hash what determines KV contents and compiled code: files, arithmetic, versions, plugins and their settings.

    A model's files count by their content's hash where that is known, else by size, time of change, beginning and end:
    so a copy on another machine has the same fingerprint if it kept its times. Layout (block size, ranks) isn't in it.

    Args:
        config: complete but for its own fingerprint.
        additions: (plugin, text) of those that add something.

    Returns:
        64 hexadecimal digits.
    """
    info = config.model_info
    parts: dict[str, Any] = {
        "corefw": __version__,
        "files": _files(info.files),
        "loader": info.loader,
        "architecture": info.architecture,
        "hf_config": info.hf_config,
        "dtype": config.dtype,
        "quantization": _quantization(config),
        "kv_cache_dtype": config.cache.kv_cache_dtype,
        "platform": config.platform,
        "model_implementation": config.model_implementation,
        "attention_backend": config.compilation.attention_backend,
        "plugins": sorted(_versions(config.plugins.resolved)),
        "plugin_settings": config.plugin_settings,
        "additions": sorted(additions),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _quantization(config: EngineConfig) -> list[str | None] | None:
    """The method, and what it was told where that isn't its name alone."""
    method, asked = config.quantization, config.model.quantization
    if method is None:
        return None
    return [method, None if asked == method else asked, config.model.quantization_config]


def _versions(plugins: Iterable[ResolvedPlugin]) -> list[tuple[str, str, str, str]]:
    return [(p.group, p.name, p.distribution, p.version) for p in plugins if p.group in _COMPUTING]


def _files(files: ModelFiles) -> list[Any]:
    if files.sha256:
        return [files.sha256]
    return [_file(Path(path)) for path in files.weights]


def _file(path: Path) -> list[Any]:
    """Name and content's hash, as caches of hubs name their files; else what can be seen of it without reading it."""
    try:
        blob = path.resolve().name
        if _SHA256.fullmatch(blob):
            return [path.name, blob]
        with path.open("rb") as file:
            stat = path.stat()
            digest = hashlib.sha256(file.read(_SAMPLE_BYTES))
            file.seek(max(stat.st_size - _SAMPLE_BYTES, 0))
            digest.update(file.read(_SAMPLE_BYTES))
        return [path.name, stat.st_size, stat.st_mtime_ns, digest.hexdigest()]
    except OSError:  # a file that only its loader can open: its loader tells what is wrong
        return [path.name]
