"""What the model says about sampling where a request is silent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corefw.config.regular_file import read_regular_text
from corefw.errors import ConfigError, RequestError
from corefw.messages.sampling import SamplingParams

if TYPE_CHECKING:
    from corefw.config.engine_config import ModelConfig
    from corefw.config.model_info import ModelInfo

__all__ = ["SamplingDefaults"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingDefaults:
    """Values of the model's ``generation_config.json``."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @classmethod
    def of_model(cls, model: ModelConfig, info: ModelInfo) -> SamplingDefaults:
        """What ``--generation-config`` asks for: the model's own, none, or those of a file or directory.

        Raises:
            ConfigError: the file can't be read, or has unusable values.
        """
        if model.generation_config == "none":
            return cls()
        if model.generation_config == "auto":
            return cls.from_generation_config(info.generation_config)
        return cls.from_generation_config(_read(Path(model.generation_config)))

    @classmethod
    def from_generation_config(cls, values: Mapping[str, Any]) -> SamplingDefaults:
        """Take the sampling values that are there.

        Raises:
            ConfigError: one of them is of the wrong type or out of range.
        """
        found = {name: values[name] for name in cls.__slots__ if values.get(name) is not None}
        for name, value in found.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"generation_config: {name} must be a number, got {type(value).__name__}")
        if "top_k" in found:
            found["top_k"] = _default_top_k(found["top_k"])
        try:
            SamplingParams(**found)
        except RequestError as error:
            raise ConfigError(f"generation_config: {error.message}; correct the model's file") from None
        return cls(**found)

    def params(self, **values: Any) -> SamplingParams:
        """Sampling parameters with these defaults; ``values`` replace them.

        Raises:
            RequestError: a value is out of range.
        """
        return SamplingParams(**{name: getattr(self, name) for name in type(self).__slots__} | values)


def _default_top_k(value: float) -> int:
    if not -1 <= value < 2**63 or int(value) != value:  # NaN and infinity are in no range
        raise ConfigError(f"generation_config: top_k must be a whole number from -1, got {str(value)[:40]}")
    return max(0, int(value))


def _read(path: Path) -> Mapping[str, Any]:
    """A ``generation_config.json``, or the one in a directory."""
    file = path / "generation_config.json" if path.is_dir() else path
    try:
        values = json.loads(read_regular_text(file))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--generation-config {str(path)[:200]!r} can't be read: {error}; give auto, none, or a file or directory"
        ) from None
    if not isinstance(values, dict):
        raise ConfigError(f"--generation-config {str(path)[:200]!r} holds no JSON object")
    return values
