"""Finds the weight files in a model directory. Torch-free."""

from __future__ import annotations

from pathlib import Path

from corefw.errors import ModelFormatError, ModelSourceError
from corefw.models.loading.gguf_split import gguf_models
from corefw.models.loading.json_file import read_json_object

__all__ = ["INDEX_NAME", "read_index", "weight_files"]

INDEX_NAME = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def weight_files(root: Path) -> tuple[str, ...]:
    """Weight files in loading order: the shards of an index, one ``.safetensors`` file, or the parts of one GGUF model.

    Raises:
        ModelSourceError: there are none, or several between which only the user can choose.
        ModelFormatError: a shard is missing, or there are only pickle files.
    """
    if (root / INDEX_NAME).exists():
        return _shards(root)
    single = root / "model.safetensors"
    if single.is_file():
        return (str(single),)
    found = sorted(root.glob("*.safetensors"))
    if len(found) > 1:
        raise ModelFormatError(
            f"{root}: has {len(found)} .safetensors files, but no {INDEX_NAME} to say how they belong together; "
            "fetch the whole model directory again"
        )
    return (str(found[0]),) if found else _gguf_files(root)


def read_index(root: Path) -> dict[str, str] | None:
    """Tensor name → shard's file name, or None when the directory has no index.

    Raises:
        ModelFormatError: the index is damaged, or names a file outside the directory.
    """
    path = root / INDEX_NAME
    if not path.exists():
        return None
    weight_map = read_json_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFormatError(f"{path}: key 'weight_map' is missing or empty; fetch it again")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise ModelFormatError(
                f"{path}: tensor {name[:80]!r} lies in {str(shard)[:80]!r}, expected a .safetensors file of the same "
                "directory; fetch it again"
            )
    return weight_map


def _shards(root: Path) -> tuple[str, ...]:
    shards = sorted(set((read_index(root) or {}).values()))
    for shard in shards:
        if not (root / shard).is_file():
            raise ModelFormatError(
                f"{root / shard}: is missing, though {INDEX_NAME} names it; fetch the whole model directory again"
            )
    return tuple(str(root / shard) for shard in shards)


def _gguf_files(root: Path) -> tuple[str, ...]:
    found = gguf_models(list(root.glob("*.gguf")))
    if len(found) == 1:
        return tuple(map(str, found[0]))
    if found:
        names = ", ".join(parts[0].name for parts in found[:8])
        raise ModelSourceError(f"{root}: has {len(found)} GGUF models ({names}); name the file of the one to load")
    pickles = [path.name for pattern in _PICKLES for path in sorted(root.glob(pattern))]
    if pickles:
        raise ModelFormatError(
            f"{root}: has its weights only in pickle files ({', '.join(pickles[:4])}), which can run code when "
            "they are loaded and are never read; save the model again with safe_serialization=True, or use a "
            ".safetensors or .gguf version"
        )
    raise ModelSourceError(f"{root}: has no weights; expected .safetensors files with a config.json, or one .gguf file")
