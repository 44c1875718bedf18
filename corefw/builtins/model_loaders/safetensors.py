"""The safetensors loader: a Hugging Face directory with config.json and one or more ``.safetensors`` files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from corefw.config.regular_file import check_regular
from corefw.errors import ModelFormatError
from corefw.interfaces.model_loader import ModelLoader
from corefw.models.loading.hf_config import read_hf_info

if TYPE_CHECKING:
    import torch

    from corefw.config.model_info import ModelFiles, ModelInfo

__all__ = ["SafetensorsLoader"]


class SafetensorsLoader(ModelLoader):
    """Reads local Hugging Face directories."""

    name: ClassVar[str] = "safetensors"

    def supports(self, files: ModelFiles) -> str | None:
        """Every weight file is called ``.safetensors``."""
        if not files.weights:
            return "there are no weight files"
        for path in files.weights:
            if not path.endswith(".safetensors"):
                return f"{Path(path).name} isn't a .safetensors file"
        return None

    def read_info(self, files: ModelFiles) -> ModelInfo:
        """Configuration files and the headers of the shards."""
        return read_hf_info(files, self.name)

    def weights(self, info: ModelInfo, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:  # noqa: ARG002
        """Views of the mapped files in the checkpoint's dtype."""
        from safetensors import SafetensorError, safe_open

        tied = bool(info.hf_config.get("tie_word_embeddings"))
        for path in info.files.weights:
            try:
                check_regular(Path(path))
                with safe_open(path, framework="pt", device="cpu") as shard:
                    for name in shard.keys():  # noqa: SIM118 - not a mapping
                        if not _is_derived(name, tied):
                            yield name, shard.get_tensor(name)
            except (SafetensorError, OSError) as error:
                raise ModelFormatError(
                    f"{path}: can't be read ({str(error)[:200]}); the file is damaged or missing, fetch it again"
                ) from error


def _is_derived(name: str, tied: bool) -> bool:
    """What some checkpoints store though it follows from the rest: rotary tables, and a head tied to the embedding."""
    return name.endswith(".rotary_emb.inv_freq") or (tied and name == "lm_head.weight")
