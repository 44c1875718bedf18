"""Builds wheels that carry data, and a folder of them that stands where the package index does."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest


def build_wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    members: Mapping[str, bytes] | None = None,
    *,
    requires: Iterable[str] = (),
    recorded: Mapping[str, bytes] | None = None,
) -> Path:
    """Write a wheel.

    Args:
        folder: where.
        name: of the package.
        version: of the package.
        members: data files by their path in the wheel.
        requires: ``Requires-Dist`` lines.
        recorded: members whose hash in RECORD is that of other bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    contents = {
        **(members or {}),
        f"{stem}.dist-info/METADATA": metadata.encode(),
        f"{stem}.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [_record_line(path, (recorded or {}).get(path, data)) for path, data in contents.items()]
    lines.append(f"{stem}.dist-info/RECORD,,")
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in contents.items():
            archive.writestr(member, data)
        archive.writestr(f"{stem}.dist-info/RECORD", "\n".join(lines))
    return path


def build_part_packages(
    folder: Path, weights: bytes, *, count: int = 4, first: int = 0, skip: int | None = None, sums: str | None = None
) -> list[Path]:
    """A package without weights that pins others with the parts of ``w.gguf``; the list begins with it.

    Args:
        folder: where.
        weights: what the parts give together.
        count: number of parts.
        first: number of the first part.
        skip: a part to leave out, counted from zero.
        sums: hash to declare instead of the right one.
    """
    size = -(-len(weights) // count)
    numbers = [number for number in range(count) if number != skip]
    parts = [
        build_wheel(
            folder,
            f"tiny-model-part{number + 1}",
            members={f"tiny/data/w.gguf.part{number + first:02}": weights[number * size : (number + 1) * size]},
        )
        for number in numbers
    ]
    digest = sums or hashlib.sha256(weights).hexdigest()
    requires = [f"tiny-model-part{number + 1}==1.0" for number in reversed(numbers)]
    members = {"tiny_model/data/SHA256SUMS": f"{digest}  w.gguf\n".encode()}
    return [build_wheel(folder, "tiny-model", members=members, requires=[*requires, "unrelated==9"]), *parts]


def _record_line(path: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f'"{path}",sha256={digest},{len(data)}'


def use_as_index(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let pip find packages in this folder and nowhere else."""
    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
