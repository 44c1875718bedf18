"""The GGUF file source: a ``.gguf`` file on this machine, with its other parts if it is one of a split model."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from corefw.config.model_info import ModelFiles
from corefw.errors import ModelSourceError
from corefw.interfaces.model_source import ModelSource, SourceOptions
from corefw.models.loading.gguf_split import part_paths

__all__ = ["GGUFFile"]


class GGUFFile(ModelSource):
    """A path that ends in ``.gguf``."""

    name: ClassVar[str] = "gguf_file"
    rank: ClassVar[int] = 20

    def supports(self, reference: str) -> str | None:
        """By the ending alone; whether the file is there is told by ``resolve``."""
        return None if reference.endswith(".gguf") else "it doesn't end in .gguf"

    def resolve(self, reference: str, options: SourceOptions) -> ModelFiles:  # noqa: ARG002
        """The file, or all parts of the model that it is a part of; nothing is fetched."""
        path = Path(reference).expanduser()
        if path.is_dir():
            raise ModelSourceError(f"{reference}: is a directory; name the .gguf file in it")
        if not path.is_file():
            raise ModelSourceError(f"{reference}: there is no such file; check the path")
        parts = part_paths(path.absolute())  # a link's own name says whether it is a part, not its target's
        weights = tuple(str(part.resolve()) for part in parts)
        return ModelFiles(reference=reference, source=self.name, root=str(Path(weights[0]).parent), weights=weights)
