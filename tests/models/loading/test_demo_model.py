"""The demo model and Gemma's file against the reference implementation, tensor by tensor."""

from __future__ import annotations

from functools import cache

import gguf
import numpy as np
import pytest

from corefw.builtins.model_loaders.gguf import GGUFLoader
from corefw.config.model_info import ModelFiles
from corefw.models.loading.gguf_blocks import dequantise
from corefw.models.loading.gguf_file import GGUFFile
from corefw.models.loading.gguf_vocabulary import end_tokens

NUM_ROWS = 64


@cache
def opened(path: str) -> gguf.GGUFReader:
    """By the reference, which takes seconds to read a header."""
    return gguf.GGUFReader(path)


def assert_equal_to_the_reference(files: ModelFiles) -> set[str]:
    """Every tensor of the file, of large ones the rows at begin, middle and end; returns the types that were seen."""
    file = GGUFFile(files.weights[0])
    reference = opened(files.weights[0])
    assert [tensor.name for tensor in reference.tensors] == list(file.tensors)
    for tensor in reference.tensors:
        info = file.tensors[tensor.name]
        assert tuple(int(size) for size in reversed(tensor.shape)) == info.shape
        raw = file.raw(tensor.name)
        for rows in rows_of(info.shape[0]) if len(info.shape) > 1 else [slice(None)]:
            expected = gguf.quants.dequantize(tensor.data[rows], tensor.tensor_type)
            got = dequantise(raw[rows], info.type).reshape(expected.shape)
            assert np.array_equal(got, expected), f"{tensor.name}, rows {rows}"
    return {info.type.name for info in file.tensors.values()}


def rows_of(num_rows: int) -> list[slice]:
    if num_rows <= 3 * NUM_ROWS:
        return [slice(None)]
    return [slice(start, start + NUM_ROWS) for start in (0, num_rows // 2, num_rows - NUM_ROWS)]


@pytest.mark.model
def test_every_tensor_of_the_demo_model_equals_the_reference(demo_model_files: ModelFiles) -> None:
    assert assert_equal_to_the_reference(demo_model_files) == {"F32", "Q4_1", "Q8_0"}


@pytest.mark.model
def test_the_demo_models_header_is_read_in_hugging_face_terms(demo_model_files: ModelFiles) -> None:
    info = GGUFLoader().read_info(demo_model_files)
    assert (info.architecture, info.checkpoint_dtype) == ("LlamaForCausalLM", "block")
    assert (info.max_position, info.vocab_size, info.eos_ids, info.bos_id) == (8192, 49152, (2,), 1)
    config = info.hf_config
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (9, 3, 64)
    assert (config["rope_theta"], config["rms_norm_eps"], config["tie_word_embeddings"]) == (100000.0, 1e-5, True)


@pytest.mark.model
def test_the_demo_models_vocabulary_equals_the_reference(demo_model_files: ModelFiles) -> None:
    metadata = GGUFFile(demo_model_files.weights[0]).metadata
    reference = opened(demo_model_files.weights[0])
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type"):
        assert metadata[key] == reference.fields[key].contents()


@pytest.mark.slow
@pytest.mark.model
def test_every_tensor_of_gemma_equals_the_reference(gemma_model_files: ModelFiles) -> None:
    assert assert_equal_to_the_reference(gemma_model_files) == {"F32", "Q4_K", "Q5_0", "Q6_K", "Q8_0"}


@pytest.mark.slow
@pytest.mark.model
def test_gemma_ends_at_the_end_of_text_and_at_the_end_of_a_turn(gemma_model_files: ModelFiles) -> None:
    file = GGUFFile(gemma_model_files.weights[0])
    assert end_tokens(file, 262144) == (1, 106)
