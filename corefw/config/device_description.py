"""A device as a capability file describes it: enough to say what would be chosen for it, where it isn't."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from corefw.config.args import parse_bytes
from corefw.config.regular_file import read_regular_text
from corefw.errors import ConfigError

__all__ = ["DeviceDescription", "read_device_description"]

_MAX_BYTES = 2**16


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceDescription:
    """What a platform may ask instead of the hardware.

    Attributes:
        platform: name of the platform plugin that drives such devices.
        name: of the product.
        capability: version of its instruction set, as its maker counts (``9.0``, ``gfx942``).
        dtypes: names of dtypes that have fast arithmetic, best first; empty leaves it to the platform.
        memory_bytes: of one device.
        num_devices: of that kind in the machine.
        features: whatever else the platform knows by name (instruction sets of a CPU).
    """

    platform: str
    name: str = ""
    capability: str | None = None
    dtypes: tuple[str, ...] = ()
    memory_bytes: int | None = None
    num_devices: int = 1
    features: tuple[str, ...] = ()


def read_device_description(path: Path) -> DeviceDescription:
    """Read a JSON or YAML file: one mapping with the keys of ``DeviceDescription``, ``memory`` with a unit.

    Raises:
        ConfigError: it can't be read, or has a key or value that isn't known; with what is accepted.
    """
    import yaml  # here: only who has a file waits for it

    label = f"capability file {str(path)[:200]!r}"
    try:
        values = yaml.safe_load(read_regular_text(path, _MAX_BYTES))  # JSON is YAML
    except OSError as error:
        raise ConfigError(f"{label} can't be read: {error.strerror}") from None
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{label} is neither JSON nor YAML: {str(error)[:300]}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{label} must be a mapping such as {{platform: cpu, dtypes: [bfloat16, float32]}}")
    return _described(values, label)


def _described(values: dict[Any, Any], label: str) -> DeviceDescription:
    names = ["memory" if item.name == "memory_bytes" else item.name for item in fields(DeviceDescription)]
    given: dict[str, Any] = {}
    for key, value in values.items():
        if key not in names:
            raise ConfigError(f"{label}: {str(key)[:60]!r} is unknown; known are {', '.join(names)}")
        given["memory_bytes" if key == "memory" else key] = _checked(key, value, label)
    if not given.get("platform"):
        raise ConfigError(f"{label} must name its platform, a plugin of corefw.platform_plugins")
    return DeviceDescription(**given)


def _checked(key: str, value: Any, label: str) -> Any:
    if key in ("dtypes", "features"):
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise ConfigError(f"{label}: {key} must be a list of names")
    if key == "num_devices":
        if type(value) is int and value > 0:
            return value
        raise ConfigError(f"{label}: {key} must be a whole number above 0")
    if key == "memory":
        if type(value) is int and value > 0:
            return value
        if isinstance(value, str):
            return parse_bytes(value)
        raise ConfigError(f"{label}: memory must be bytes, or a text with a unit such as 80GiB")
    if key == "capability" and type(value) in (int, float):
        return str(value)  # 9.0 is a number to YAML
    if isinstance(value, str):
        return value
    raise ConfigError(f"{label}: {key} must be a text")
