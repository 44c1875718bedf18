from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from corefw.builtins.model_loaders.safetensors import SafetensorsLoader
from corefw.config.model_info import ModelFiles
from corefw.errors import ModelFormatError
from tests.models.loading.hf_directory import files_of, write_directory
from tests.models.loading.tiny_gguf import llama_arrays


def load(files: ModelFiles) -> dict[str, torch.Tensor]:
    loader = SafetensorsLoader()
    return dict(loader.weights(loader.read_info(files), torch.float32))


@pytest.mark.parametrize("shards", [1, 3])
def test_every_tensor_is_given_as_it_is_stored(tmp_path: Path, shards: int) -> None:
    arrays = {name: array.astype(np.float16) for name, array in llama_arrays().items()}
    weights = load(files_of(write_directory(tmp_path, arrays=arrays, shards=shards)))
    assert weights.keys() == arrays.keys()
    for name, array in arrays.items():
        assert torch.equal(weights[name], torch.from_numpy(array)), name


def test_a_head_that_is_tied_and_old_rotary_tables_are_left_out(tmp_path: Path) -> None:
    table = "model.layers.0.self_attn.rotary_emb.inv_freq"
    arrays = {**llama_arrays(), table: np.zeros(8, np.float32)}
    root = write_directory(tmp_path, arrays=arrays, config={"tie_word_embeddings": True})
    assert load(files_of(root)).keys() == arrays.keys() - {table, "lm_head.weight"}


def test_a_shard_that_goes_missing_after_the_header_was_read_is_named(tmp_path: Path) -> None:
    files = files_of(write_directory(tmp_path))
    loader = SafetensorsLoader()
    info = loader.read_info(files)
    Path(files.weights[0]).unlink()
    with pytest.raises(ModelFormatError, match=r"model\.safetensors: can't be read"):
        dict(loader.weights(info, torch.float32))


def test_only_safetensors_files_are_supported_and_the_reason_is_said(tmp_path: Path) -> None:
    loader = SafetensorsLoader()
    assert loader.supports(files_of(write_directory(tmp_path))) is None
    gguf = ModelFiles(reference="x", source="gguf_file", root="/", weights=("/x.gguf",))
    assert loader.supports(gguf) == "x.gguf isn't a .safetensors file"
    empty = ModelFiles(reference="x", source="local", root="/", weights=())
    assert loader.supports(empty) == "there are no weight files"
