from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from corefw.errors import ModelFormatError
from corefw.models.loading.gguf_architectures import ARCHITECTURES
from corefw.models.loading.gguf_file import GGUFFile
from corefw.models.loading.gguf_tensors import map_tensors, raw_in_hf_order, undo_head_permutation
from tests.models.loading.tiny_gguf import HEADS, KV_HEADS, llama_arrays, write_llama


@pytest.mark.parametrize("num_heads", [1, 2, 9])
def test_the_exporters_permutation_is_undone(num_heads: int) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (num_heads * 12, 5), dtype=np.uint8)
    exported = rows.reshape(num_heads, 2, 6, 5).swapaxes(1, 2).reshape(rows.shape)
    assert np.array_equal(undo_head_permutation(exported, num_heads), rows)


def test_an_exported_llama_comes_back_identical(tmp_path: Path) -> None:
    arrays = llama_arrays(biases=True)
    file = GGUFFile(write_llama(tmp_path / "model.gguf", arrays))
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS}
    back = {
        tensor.name: raw_in_hf_order(file, tensor, heads).copy().view(np.float32).reshape(tensor.source.shape)
        for tensor in map_tensors(file, ARCHITECTURES["llama"])
    }
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert np.array_equal(back[name], array), name


def test_rows_that_the_heads_cannot_share_are_refused(tmp_path: Path) -> None:
    file = GGUFFile(write_llama(tmp_path / "model.gguf", llama_arrays()))
    query = next(tensor for tensor in map_tensors(file, ARCHITECTURES["llama"]) if "q_proj" in tensor.name)
    with pytest.raises(ModelFormatError, match=r"'blk.0.attn_q.weight' has 64 rows, which 7 heads"):
        raw_in_hf_order(file, query, {"num_attention_heads": 7})
