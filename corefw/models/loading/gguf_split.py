"""Models split into several GGUF files: names, and what the parts say of each other. Torch-free.

``llama-gguf-split`` calls them ``NAME-00001-of-00003.gguf`` and so on; the first one has the model's keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corefw.errors import ModelFormatError, ModelSourceError

__all__ = ["check_parts", "gguf_models", "part_paths"]

_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf")


def part_paths(path: Path) -> tuple[Path, ...]:
    """All parts of the model that a file is a part of, in order; the file alone if its name isn't that of a part.

    Raises:
        ModelSourceError: a part is missing.
    """
    match = _PART_NAME.fullmatch(path.name)
    if match is None:
        return (path,)
    count = int(match["count"])
    if not 1 <= int(match["number"]) <= count:
        raise ModelSourceError(f"{path}: can't be part {int(match['number'])} of {count}; check the name")
    parts = tuple(path.with_name(f"{match['stem']}-{n:05d}-of-{count:05d}.gguf") for n in range(1, count + 1))
    for number, part in enumerate(parts, 1):
        if not part.is_file():
            raise ModelSourceError(
                f"{part}: is missing, part {number} of the {count} of a split model; fetch it into the same directory"
            )
    return parts


def gguf_models(paths: Sequence[Path]) -> list[tuple[Path, ...]]:
    """The models that files make up: each that isn't split alone, each split one with all its parts.

    Raises:
        ModelSourceError: a part is missing.
    """
    models: dict[Path, tuple[Path, ...]] = {}
    for path in sorted(paths):
        if not any(path in parts for parts in models.values()):
            models[path] = part_paths(path)
    return list(models.values())


def check_parts(paths: Sequence[str], metadata: Sequence[Mapping[str, Any]], num_tensors: int) -> None:
    """Refuse parts that don't belong together.

    Raises:
        ModelFormatError: the parts' own numbers contradict one another, or the number of files.
    """
    for index, (path, keys) in enumerate(zip(paths, metadata, strict=True)):
        number, count = keys.get("split.no", 0), keys.get("split.count", 1) or 1
        if (number, count) == (index, len(paths)):
            continue
        if len(paths) == 1:
            raise ModelFormatError(
                f"{path}: is one of {count} files of a split model, but isn't called so; give it back the name that it "
                f"had when it was split (NAME-00001-of-{count:05d}.gguf and so on), with the other parts beside it"
            )
        raise ModelFormatError(
            f"{path}: says that it is part {number} (from 0) of {count}, by its name it is {index} of {len(paths)}; "
            "fetch all parts again"
        )
    declared = metadata[0].get("split.tensors.count")
    if len(paths) > 1 and declared is not None and declared != num_tensors:
        raise ModelFormatError(
            f"{paths[0]}: declares {declared} tensors, but its {len(paths)} parts have {num_tensors}; "
            "fetch all parts again"
        )
