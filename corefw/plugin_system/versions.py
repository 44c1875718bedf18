"""Which versions of a group's interface a plugin was written for, and whether this corefw accepts them."""

from __future__ import annotations

import re

from corefw.plugin_system.groups import Group

__all__ = ["class_version_reason", "declared_range_reason", "parse_range", "range_text"]

_RANGE = re.compile(r"v?(\d{1,6})(?::v?(\d{1,6}))?")


def parse_range(declared: str) -> tuple[int, int] | None:
    """``v1`` or ``v1:v3``, lowest and highest, as an entry point of ``corefw.api_versions`` has it; else None."""
    found = _RANGE.fullmatch(declared.replace(" ", ""))
    if found is None:
        return None
    low = int(found.group(1))
    high = int(found.group(2) or low)
    return (low, high) if low <= high else None


def declared_range_reason(group: Group, declared: str | None) -> str | None:
    """None when a version that is accepted lies in the declared range, or there is no declaration; else why not."""
    if declared is None:
        return None
    versions = parse_range(declared)
    if versions is None:
        return f"corefw.api_versions says {declared[:40]!r} for {group.name}; write v1 or, for a range, v1:v2"
    low, high = group.api_versions
    if versions[0] <= high and low <= versions[1]:
        return None
    return _reason(group, range_text(versions))


def class_version_reason(group: Group, version: object) -> str | None:
    """None when the version that a class says is accepted, else why not."""
    low, high = group.api_versions
    return None if isinstance(version, int) and low <= version <= high else _reason(group, str(version))


def range_text(versions: tuple[int, int]) -> str:
    """``1`` or ``1 to 3``."""
    low, high = versions
    return f"{low}" if low == high else f"{low} to {high}"


def _reason(group: Group, versions: str) -> str:
    return f"written for version {versions} of {group.name}, this corefw accepts {range_text(group.api_versions)}"
