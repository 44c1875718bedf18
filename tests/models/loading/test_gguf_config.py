from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from corefw.config.model_info import ModelFiles, ModelInfo
from corefw.errors import ModelFormatError
from corefw.models.loading.gguf_config import read_gguf_info
from corefw.models.loading.gguf_file import GGUFFile
from tests.models.loading.tiny_gguf import HEAD_DIM, HIDDEN, VOCAB, llama_arrays, write_llama


def info_of(path: Path) -> ModelInfo:
    files = ModelFiles(reference=str(path), source="gguf_file", root=str(path.parent), weights=(str(path),))
    return read_gguf_info(GGUFFile(path), files, "gguf")


def written(tmp_path: Path, **options: Any) -> ModelInfo:
    arrays = options.pop("arrays", None) or llama_arrays()
    return info_of(write_llama(tmp_path / "model.gguf", arrays, **options))


def test_a_llama_file_becomes_a_hugging_face_configuration(tmp_path: Path) -> None:
    info = written(tmp_path)
    assert info.architecture == "LlamaForCausalLM"
    assert (info.max_position, info.vocab_size, info.eos_ids, info.bos_id) == (256, VOCAB, (2,), 1)
    assert info.checkpoint_dtype == "float32"
    assert info.hf_config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 256,
        "vocab_size": VOCAB,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "sliding_window": None,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "eos_token_id": [2],
        "bos_token_id": 1,
    }


def test_a_file_without_an_output_tensor_has_tied_embeddings(tmp_path: Path) -> None:
    assert written(tmp_path, arrays=llama_arrays(tied=True)).hf_config["tie_word_embeddings"] is True


def test_biases_are_declared_where_the_file_has_them(tmp_path: Path) -> None:
    config = written(tmp_path, arrays=llama_arrays(biases=True)).hf_config
    assert (config["attention_bias"], config["mlp_bias"]) == (True, True)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, None),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            {"rope_type": "linear", "factor": 4.0},
        ),
        ({"llama.rope.scale_linear": 8.0}, {"rope_type": "linear", "factor": 8.0}),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 16.0,
                "llama.rope.scaling.original_context_length": 64,
                "llama.rope.scaling.attn_factor": 1.1,
                "llama.rope.scaling.yarn_beta_fast": 32.0,
                "llama.rope.scaling.yarn_beta_slow": 1.0,
            },
            {
                "rope_type": "yarn",
                "factor": 16.0,
                "original_max_position_embeddings": 64,
                "attention_factor": 1.1,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
            },
        ),
    ],
)
def test_rope_scaling_is_given_in_hugging_face_terms(
    tmp_path: Path, metadata: dict[str, Any], expected: dict[str, Any] | None
) -> None:
    assert written(tmp_path, metadata=metadata).hf_config["rope_scaling"] == expected


def test_llama_3_frequency_factors_are_delivered_as_a_list(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, HEAD_DIM // 2, dtype=np.float32)
    config = written(tmp_path, extra={"rope_freqs.weight": factors}).hf_config
    assert config["rope_freq_factors"] == pytest.approx(factors.tolist())
    assert all(type(factor) is float for factor in config["rope_freq_factors"])


def test_rotary_dimensions_below_the_head_size_are_declared(tmp_path: Path) -> None:
    config = written(tmp_path, metadata={"llama.rope.dimension_count": HEAD_DIM // 2}).hf_config
    assert config["partial_rotary_factor"] == 0.5


def test_a_sliding_window_is_declared(tmp_path: Path) -> None:
    assert written(tmp_path, metadata={"llama.attention.sliding_window": 32}).hf_config["sliding_window"] == 32


def test_equal_head_counts_of_all_layers_are_taken(tmp_path: Path) -> None:
    info = written(tmp_path, metadata={"llama.attention.head_count_kv": [2, 2]})
    assert info.hf_config["num_key_value_heads"] == 2


def test_sampling_defaults_of_the_file_are_kept(tmp_path: Path) -> None:
    info = written(tmp_path, metadata={"general.sampling.temp": 0.5, "general.sampling.top_k": 20})
    assert info.generation_config == {"temperature": 0.5, "top_k": 20}


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (gguf.GGMLQuantizationType.F16, "float16"),
        (gguf.GGMLQuantizationType.BF16, "bfloat16"),
        (gguf.GGMLQuantizationType.Q4_0, "block"),
    ],
)
def test_the_checkpoint_dtype_is_that_of_most_weights(
    tmp_path: Path, kind: gguf.GGMLQuantizationType, dtype: str
) -> None:
    arrays = llama_arrays()
    types = {name: kind for name in arrays if "norm" not in name}
    assert written(tmp_path, arrays=arrays, types=types).checkpoint_dtype == dtype


@pytest.mark.parametrize(
    ("metadata", "eos_ids"),
    [
        ({"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 8}, (2, 7, 8)),
        ({"tokenizer.ggml.eot_token_id": 2}, (2,)),
        ({"tokenizer.ggml.tokens": ["a", "b", "c", "<end_of_turn>"]}, (2, 3)),
        ({"tokenizer.ggml.tokens": ["a", "b", "<|im_end|>", "d"]}, (2,)),
        ({"tokenizer.ggml.tokens": ["a", "<|eot_id|>", "c"], "tokenizer.ggml.eot_token_id": 9}, (2, 9)),
    ],
)
def test_all_end_tokens_are_found(tmp_path: Path, metadata: dict[str, Any], eos_ids: tuple[int, ...]) -> None:
    assert written(tmp_path, metadata=metadata).eos_ids == eos_ids


def test_a_file_without_tokenizer_keys_has_no_end_token(tmp_path: Path) -> None:
    keys = ("tokenizer.ggml.tokens", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.bos_token_id")
    info = written(tmp_path, without=keys)
    assert (info.eos_ids, info.bos_id) == ((), None)


@pytest.mark.parametrize(
    "key",
    [
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
    ],
)
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(ModelFormatError, match=f"metadata key {key} is missing"):
        written(tmp_path, without=(key,))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.block_count": "two"}, "llama.block_count is 'two'"),
        ({"llama.embedding_length": 0}, "llama.embedding_length is '0'"),
        ({"llama.embedding_length": 128}, r"token_embd.weight' is of shape \(40, 64\)"),
        ({"llama.attention.layer_norm_rms_epsilon": math.nan}, "layer_norm_rms_epsilon is 'nan'"),
        ({"llama.attention.head_count": 5}, "doesn't divide the hidden size 64"),
        ({"llama.attention.head_count_kv": 3}, "doesn't divide the 4 query heads"),
        ({"llama.attention.head_count_kv": [2, 1]}, "differs between layers"),
        ({"llama.attention.value_length": 8}, "llama.attention.value_length is 8"),
        ({"llama.rope.dimension_count": 17}, "llama.rope.dimension_count is 17"),
        ({"llama.rope.dimension_count": 18}, "llama.rope.dimension_count is 18"),
        *(
            (
                {f"llama.rope.{key}": value},
                f"llama.rope.{key} is '{re.escape(str(value))}', expected a positive number from 1e-06",
            )
            for key in ("freq_base", "scale_linear", "scaling.factor")
            for value in (0.0, -2.0, 2.0**-30, 2.0**60, math.inf, math.nan)
        ),
        ({"llama.rope.scaling.type": "longrope"}, "none, linear and yarn"),
        ({"llama.expert_count": 8}, "llama.expert_count asks for arithmetic"),
        ({"llama.block_count": 3}, "tensor 'blk.2.attn_norm.weight' is missing"),
        ({"llama.block_count": 4_000_000_000}, "tensor 'blk.2.attn_norm.weight' is missing"),
        ({"llama.block_count": 1}, "beyond the 1 that"),
        ({"tokenizer.ggml.eos_token_id": 40}, "eos_token_id is 40, but the vocabulary has 40"),
        ({"split.count": 3}, "is one of 3 files of a split model"),
    ],
)
def test_an_unusable_value_is_named(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        written(tmp_path, metadata=metadata)


def test_an_unknown_architecture_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"'mamba' can't be read from GGUF; known: .*llama"):
        written(tmp_path, architecture="mamba")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"tensor 'output_norm.weight' is missing"):
        written(tmp_path, without=("output_norm.weight",))


def test_an_unknown_tensor_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"tensor 'blk.1.attn_sinks.weight' isn't known"):
        written(tmp_path, extra={"blk.1.attn_sinks.weight": np.zeros(4, np.float32)})


def test_frequency_factors_of_a_wrong_number_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="must hold 8 positive numbers"):
        written(tmp_path, extra={"rope_freqs.weight": np.ones(HIDDEN, np.float32)})
