"""The local source: a directory on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from corefw.config.model_info import ModelFiles
from corefw.errors import ModelSourceError
from corefw.interfaces.model_source import ModelSource, SourceOptions
from corefw.models.loading.model_directory import weight_files

__all__ = ["LocalDirectory", "looks_like_path"]


def looks_like_path(reference: str) -> bool:
    """Whether a reference can only mean a place on this machine."""
    return reference.startswith(("/", "./", "../", "~", ".\\", "..\\")) or reference.endswith("/") or "\\" in reference


class LocalDirectory(ModelSource):
    """A Hugging Face directory, or a directory with exactly one ``.gguf`` file."""

    name: ClassVar[str] = "local"
    rank: ClassVar[int] = 10

    def supports(self, reference: str) -> str | None:
        """Existing directories; and what is written as a path but isn't there, to say so plainly."""
        if reference.endswith(".gguf"):
            return "it names a .gguf file, not a directory"
        if reference.startswith("pypi:"):
            return "it names a package, not a directory"
        if looks_like_path(reference) or Path(reference).exists():
            return None
        return "there is no directory of that name"

    def resolve(self, reference: str, options: SourceOptions) -> ModelFiles:  # noqa: ARG002
        """Find the weights in it; nothing is fetched."""
        root = Path(reference).expanduser()
        if root.is_file():
            raise ModelSourceError(
                f"{reference}: is a file; name a directory with config.json and .safetensors files, or a .gguf file"
            )
        if not root.is_dir():
            raise ModelSourceError(f"{reference}: there is no such directory; check the path")
        root = root.resolve()
        return ModelFiles(reference=reference, source=self.name, root=str(root), weights=weight_files(root))
