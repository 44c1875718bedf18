"""What decides which bytes a page has for given tokens, as one short text."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.config.model_info import ModelFiles
    from corefw.interfaces.attention import AttentionBackend
    from corefw.interfaces.kv_cache import KVCacheSpec

__all__ = ["layout_fingerprint"]

_SAMPLE_BYTES = 2**16


def layout_fingerprint(
    config: EngineConfig, backend: type[AttentionBackend], specs: Mapping[str, KVCacheSpec], rank: int, num_ranks: int
) -> str:
    """Equal in two engines, or two runs of one, whose pages can be exchanged: 32 hexadecimal digits.

    The weights count by their files' sizes and samples of their bytes, since hashing all of a large model takes
    minutes. Where the files lie doesn't matter. Plugins count by the engine's fingerprint: they may change weights.
    """
    info = config.model_info
    layers = {
        name: [type(spec).__name__, repr(sorted(dataclasses.asdict(spec).items())), repr(backend.page_view(spec))]
        for name, spec in specs.items()
    }
    described = {
        "engine": config.fingerprint,
        "architecture": info.architecture,
        "config": info.hf_config,
        "dtype": config.dtype,
        "implementation": config.model_implementation,
        "backend": backend.name,
        "layers": layers,
        "rank": [rank, num_ranks],
        "weights": _weights(info.files),
    }
    text = json.dumps(described, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _weights(files: ModelFiles) -> list[str]:
    return [_sample(Path(files.root) / name) for name in files.weights]


def _sample(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = file.seek(0, 2)
        digest.update(str(size).encode())
        for place in (0, size // 3, 2 * size // 3, size - _SAMPLE_BYTES):
            file.seek(max(0, place))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
