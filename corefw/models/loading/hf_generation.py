"""``generation_config.json``: sampling defaults, checked. Torch-free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corefw.models.loading.config_reader import ConfigReader

__all__ = ["sampling_defaults"]

_MAX_TEMPERATURE = 100.0
_MAX_INT = 2**63 - 1


def sampling_defaults(reader: ConfigReader) -> dict[str, Any]:
    """The sampling values that the file states; null states nothing.

    Raises:
        ModelFormatError: a value of the wrong type or out of range.
    """
    checks: dict[str, Callable[[str], Any]] = {
        "do_sample": reader.flag,
        "temperature": lambda key: reader.number(key, high=_MAX_TEMPERATURE, low_open=False),
        "top_k": lambda key: reader.whole(key, _MAX_INT, low=-1),
        "top_p": lambda key: reader.number(key, high=1.0),
        "min_p": lambda key: reader.number(key, high=1.0, low_open=False),
        "repetition_penalty": reader.number,
        "max_new_tokens": lambda key: reader.whole(key, _MAX_INT),
    }
    return {key: check(key) for key, check in checks.items() if reader.has(key)}
