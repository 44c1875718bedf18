from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from transformers import LlamaConfig

from corefw.config.model_info import ModelInfo
from corefw.errors import ModelFormatError
from corefw.models.loading.hf_config import read_hf_info
from tests.models.loading.hf_directory import files_of, write_directory
from tests.models.loading.tiny_gguf import llama_arrays


def info_of(root: Path, **options: Any) -> ModelInfo:
    return read_hf_info(files_of(write_directory(root, **options)), "safetensors")


def test_a_llama_directory_is_read(tmp_path: Path) -> None:
    info = info_of(tmp_path, shards=2)
    assert (info.architecture, info.checkpoint_dtype) == ("LlamaForCausalLM", "float32")
    assert (info.max_position, info.vocab_size, info.eos_ids, info.bos_id) == (256, 40, (2,), 1)
    assert (info.hf_config["head_dim"], info.hf_config["rope_scaling"]) == (16, None)
    assert info.num_layers == 2


def test_what_old_configurations_leave_out_gets_the_familys_default(tmp_path: Path) -> None:
    left_out = ("num_key_value_heads", "rope_theta", "rms_norm_eps", "tie_word_embeddings", "torch_dtype")
    info = info_of(tmp_path, without=left_out)
    expected = {
        "num_key_value_heads": 4,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "sliding_window": None,
    }
    assert {key: info.hf_config[key] for key in expected} == expected
    assert info.checkpoint_dtype == "float32"


def test_embeddings_are_tied_when_there_is_no_head_and_no_word_on_it(tmp_path: Path) -> None:
    info = info_of(tmp_path, without=("tie_word_embeddings",), arrays=dict(llama_arrays(tied=True)))
    assert info.hf_config["tie_word_embeddings"] is True


def test_a_configuration_written_by_transformers_gives_theta_and_scaling(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    written = LlamaConfig(rope_parameters=rope).to_dict()
    config = info_of(
        tmp_path, config={"rope_parameters": written["rope_parameters"]}, without=("rope_theta",)
    ).hf_config
    assert config["rope_theta"] == 500000.0
    assert config["rope_scaling"] == {key: value for key, value in rope.items() if key != "rope_theta"}


@pytest.mark.parametrize(
    ("config", "scaling"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, {"rope_type": "linear", "factor": 2.0}),
        ({"rope_scaling": {"rope_type": "default"}}, None),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, None),
        ({"rope_scaling": None}, None),
    ],
)
def test_rope_scaling_has_one_form(tmp_path: Path, config: dict[str, Any], scaling: dict[str, Any] | None) -> None:
    assert info_of(tmp_path, config=config).hf_config["rope_scaling"] == scaling


@pytest.mark.parametrize(
    ("config", "stored", "expected"),
    [
        ({"dtype": "bfloat16", "torch_dtype": None}, np.float32, "bfloat16"),
        ({"torch_dtype": "torch.float16"}, np.float32, "float16"),
        ({"torch_dtype": "auto"}, np.float16, "float16"),
        ({"torch_dtype": None}, np.float32, "float32"),
    ],
)
def test_the_checkpoint_dtype_is_the_declared_or_the_stored_one(
    tmp_path: Path, config: dict[str, Any], stored: type, expected: str
) -> None:
    arrays = {name: array.astype(stored) for name, array in llama_arrays().items()}
    assert info_of(tmp_path, config=config, arrays=arrays).checkpoint_dtype == expected


def test_the_generation_configuration_gives_end_tokens_and_sampling_defaults(tmp_path: Path) -> None:
    generation = {"eos_token_id": [3, 4, 3], "temperature": 0.6, "top_p": 0.9, "do_sample": True, "cache": {"a": 1}}
    info = info_of(tmp_path, generation=generation)
    assert info.eos_ids == (3, 4)
    assert info.generation_config == {"temperature": 0.6, "top_p": 0.9, "do_sample": True}


def test_end_tokens_come_from_the_configuration_when_the_other_file_has_none(tmp_path: Path) -> None:
    assert info_of(tmp_path, generation={"eos_token_id": None}, config={"eos_token_id": [7, 8]}).eos_ids == (7, 8)
    assert info_of(tmp_path, without=("eos_token_id", "bos_token_id")).bos_id is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"without": ("architectures",)}, "key 'architectures' must be a list"),
        ({"config": {"architectures": []}}, "key 'architectures' must be a list"),
        ({"without": ("hidden_size",)}, "key 'hidden_size' is missing"),
        ({"without": ("max_position_embeddings",)}, "key 'max_position_embeddings' is missing"),
        ({"config": {"vocab_size": "many"}}, "key 'vocab_size' is 'many'"),
        ({"config": {"num_hidden_layers": 0}}, "key 'num_hidden_layers' is 0, expected"),
        (
            {"config": {"num_attention_heads": 5, "num_key_value_heads": 1}},
            "key 'num_attention_heads' is 5, which doesn't divide",
        ),
        ({"config": {"eos_token_id": "</s>"}}, "key 'eos_token_id' is '</s>'"),
        ({"arrays": dict(llama_arrays(tied=True))}, "'lm_head.weight' is missing, though tie_word_embeddings"),
    ],
)
def test_an_unusable_configuration_names_file_and_key(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFormatError, match=message) as caught:
        info_of(tmp_path, **options)
    assert str(tmp_path) in str(caught.value)


def test_a_missing_or_damaged_configuration_is_named(tmp_path: Path) -> None:
    files = files_of(write_directory(tmp_path))
    (tmp_path / "config.json").write_bytes(b'{"a": \xff}')
    with pytest.raises(ModelFormatError, match=r"config\.json: isn't valid JSON"):
        read_hf_info(files, "safetensors")
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelFormatError, match=r"config\.json: is missing"):
        read_hf_info(files, "safetensors")


def test_a_tensor_that_is_not_where_the_index_says_is_named(tmp_path: Path) -> None:
    root = write_directory(tmp_path, shards=2)
    second = root / "model-00002-of-00002.safetensors"
    second.write_bytes((root / "model-00001-of-00002.safetensors").read_bytes())
    with pytest.raises(ModelFormatError, match=r"model-00002-of-00002\.safetensors: tensor '.*' is missing, though"):
        read_hf_info(files_of(root), "safetensors")


@pytest.mark.parametrize(
    ("model_type", "architecture", "config_class"),
    [
        ("qwen2", "Qwen2ForCausalLM", "Qwen2Config"),
        ("qwen3", "Qwen3ForCausalLM", "Qwen3Config"),
        ("gemma2", "Gemma2ForCausalLM", "Gemma2Config"),
        ("gemma3_text", "Gemma3ForCausalLM", "Gemma3TextConfig"),
        ("phi3", "Phi3ForCausalLM", "Phi3Config"),
    ],
)
def test_what_an_old_configuration_leaves_out_is_what_transformers_assumes(
    tmp_path: Path, model_type: str, architecture: str, config_class: str
) -> None:
    left_out = ("rms_norm_eps", "query_pre_attn_scalar", "head_dim")
    stated = {"model_type": model_type, "architectures": [architecture]}
    config = info_of(tmp_path, config=stated, without=left_out).hf_config
    assumed = getattr(transformers, config_class)(hidden_size=64, num_attention_heads=4)
    for key in left_out:
        if hasattr(assumed, key):
            assert config[key] == getattr(assumed, key), key
