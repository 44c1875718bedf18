"""Whatever a Hugging Face configuration holds: a model, or one error that names file, key, value and the remedy."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from corefw.config.model_info import ModelInfo
from corefw.errors import ModelFormatError
from corefw.models.layers.rope import rope_parameters
from corefw.models.loading.hf_config import read_hf_info
from corefw.models.loading.hf_rope import BUILT_IN_KINDS
from tests.models.loading.hf_directory import files_of, write_directory
from tests.models.loading.tiny_gguf import llama_arrays

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
NO_SIZE = [None, 0, -1, True, 1.0, "8", [8], {"a": 8}, 2**40, 10**300, math.nan]
NO_POSITIVE_NUMBER = [None, 0, -1e-5, True, "1", [1.0], math.nan, math.inf, -math.inf, 10**400]
NO_FLAG = [None, 0, 1, "true", [True]]
NO_TOKEN_ID = [-1, 2**31, True, 1.0, "2", {"a": 1}, [1, -1], [1, None], [[1]], [2.0], [False], list(range(2000))]


def info_of(root: Path, **options: Any) -> ModelInfo:
    return read_hf_info(files_of(write_directory(root, **options)), "safetensors")


def refusal(root: Path, **options: Any) -> str:
    with pytest.raises(ModelFormatError) as caught:
        info_of(root, **options)
    message = str(caught.value)
    assert len(message) < len(str(root)) + 700
    return message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, value) for key in ("hidden_size", "num_hidden_layers", "vocab_size") for value in NO_SIZE),
        *((key, value) for key in ("num_attention_heads", "max_position_embeddings") for value in NO_SIZE),
        *(("intermediate_size", value) for value in NO_SIZE),
        *(("num_key_value_heads", value) for value in (*NO_SIZE[1:], 3, 8)),
        *((key, value) for key in ("head_dim", "sliding_window") for value in NO_SIZE[1:]),
        ("head_dim", 15),
        ("num_hidden_layers", 4097),
        ("hidden_size", 2**20 + 1),
        ("intermediate_size", 2**20 + 1),
        ("vocab_size", 2**24 + 1),
        ("num_attention_heads", 2**16 + 1),
        ("max_position_embeddings", 2**31 + 1),
        *((key, value) for key in ("rms_norm_eps", "rope_theta") for value in NO_POSITIVE_NUMBER),
        *(("rope_theta", value) for value in (1e-7, 1e13, -1e4)),
        *(("partial_rotary_factor", value) for value in (*NO_POSITIVE_NUMBER[1:], 1.01, 0.01)),
        *((key, value) for key in ("tie_word_embeddings", "attention_bias", "mlp_bias") for value in NO_FLAG),
        *(("rope_scaling", value) for value in ([], "linear", 2, True)),
        *(("rope_parameters", value) for value in ([], "linear", 2, {"full_attention": {"rope_type": "default"}})),
        *(("layer_types", value) for value in ("full_attention", [], ["full_attention"], {}, 2)),
        ("layer_types", ["full_attention", "chunked_attention"]),
        ("layer_types", ["full_attention", None]),
        ("layer_types", [["full_attention"], "full_attention"]),
        *((key, value) for key in ("torch_dtype", "dtype") for value in ("int8", "float8_e4m3fn", "", 16, ["float16"])),
        *((key, value) for key in ("quantization_config", "compression_config") for value in ({"bits": 4}, {}, "gptq")),
        *((key, value) for key in ("eos_token_id", "bos_token_id") for value in NO_TOKEN_ID),
        ("architectures", ["Llama For\nCausal"]),
        ("architectures", ["L" * 300]),
        ("architectures", "LlamaForCausalLM"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_value_that_no_model_can_have_is_refused_by_file_and_key(tmp_path: Path, key: str, value: Any) -> None:
    message = refusal(tmp_path, config={key: value})
    assert re.match(rf"{re.escape(str(tmp_path))}/config\.json: key '{key}[^ ]*' ", message)
    assert message.endswith("fetch the model again or correct the file")


@pytest.mark.parametrize("key", ["intermediate_size", "num_attention_heads", "vocab_size"])
def test_a_size_that_is_missing_is_said_to_be_missing(tmp_path: Path, key: str) -> None:
    assert f"key {key!r} is missing, expected a whole number in [1, " in refusal(tmp_path, without=(key,))


def test_the_error_shows_value_and_what_is_accepted(tmp_path: Path) -> None:
    message = refusal(tmp_path, config={"num_hidden_layers": -3})
    assert "key 'num_hidden_layers' is -3, expected a whole number in [1, 4096]" in message


@pytest.mark.parametrize(
    ("scaling", "key"),
    [
        ({"rope_type": "spiral", "factor": 2.0}, "rope_type"),
        ({"type": ["linear"], "factor": 2.0}, "type"),
        ({"rope_type": "mrope", "factor": 2.0}, "rope_type"),
        ({"rope_type": "su", "factor": 2.0}, "rope_type"),
        *(({"rope_type": kind}, "factor") for kind in ("linear", "dynamic", "yarn")),
        ({"rope_type": "yarn", "factor": 2.0, "mscale": "1"}, "mscale"),
        ({"rope_type": "yarn", "factor": 2.0, "truncate": 1}, "truncate"),
        *(({**LONGROPE, key: None}, key) for key in ("short_factor", "long_factor")),
        *(({**LONGROPE, "long_factor": value}, "long_factor") for value in ([], 2.0, "2")),
        ({**LONGROPE, "short_factor": [1.0, 0]}, "short_factor[1]"),
        *(({"rope_type": "linear", "factor": value}, "factor") for value in NO_POSITIVE_NUMBER),
        *(({**LLAMA3, key: None}, key) for key in LLAMA3 if key != "rope_type"),
        ({**LLAMA3, "high_freq_factor": 1.0}, "high_freq_factor"),
        ({**LLAMA3, "original_max_position_embeddings": 64.0}, "original_max_position_embeddings"),
        ({"rope_type": "default", "partial_rotary_factor": 2}, "partial_rotary_factor"),
        ({"rope_type": "default", "rope_theta": math.inf}, "rope_theta"),
        *(({"rope_type": "default", "rope_theta": value}, "rope_theta") for value in (1e-7, 1e13, -1e4)),
        *(({"rope_type": "linear", "factor": value}, "factor") for value in (1e-300, 1e300)),
        *(({**LLAMA3, key: 1e300}, key) for key in ("high_freq_factor", "low_freq_factor")),
        *(
            ({"rope_type": "yarn", "factor": 2.0, key: 1e300}, key)
            for key in ("attention_factor", "beta_fast", "mscale")
        ),
        ({**LONGROPE, "long_factor": [1e-300] * 8}, "long_factor[0]"),
    ],
    ids=lambda value: repr(value)[:40],
)
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_a_rotary_scaling_that_cannot_be_computed_is_refused(tmp_path: Path, name: str, scaling: Any, key: str) -> None:
    message = refusal(tmp_path, config={name: scaling}, without=("rope_theta",))
    assert f"config.json: key '{name}.{key}' is " in message


def test_the_kinds_of_scaling_that_are_let_through_are_those_the_layer_computes(tmp_path: Path) -> None:
    for kind in BUILT_IN_KINDS:
        factors = LONGROPE if kind == "longrope" else {}
        scaling = {**LLAMA3, **factors, "rope_type": kind}
        config = info_of(tmp_path / kind, config={"rope_scaling": scaling}).hf_config
        assert rope_parameters(config, 16).kind == kind


@pytest.mark.parametrize("name", ["su", "yarn"])
def test_the_names_that_long_rope_once_had_are_known(tmp_path: Path, name: str) -> None:
    scaling = {**LONGROPE, "rope_type": None, "type": name}
    assert info_of(tmp_path, config={"rope_scaling": scaling}).hf_config["rope_scaling"] == LONGROPE


def test_the_factor_of_yarn_follows_from_the_lengths(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "original_max_position_embeddings": 64}
    config = info_of(tmp_path, config={"rope_scaling": scaling}).hf_config
    assert rope_parameters(config, 16).stretch() == 4.0


def test_only_a_family_whose_layers_turn_differently_has_parameters_by_kind_of_layer(tmp_path: Path) -> None:
    rope = {"full_attention": {"rope_type": "linear", "factor": 8.0}, "sliding_attention": {"rope_theta": 1e4}}
    config = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"}
    assert info_of(tmp_path, config={**config, "rope_parameters": rope}).hf_config["rope_parameters"] == rope
    message = refusal(tmp_path, config={**config, "rope_parameters": {**rope, "full_attention": {"type": "linear"}}})
    assert "key 'rope_parameters.full_attention.factor' is missing" in message


def test_a_window_that_the_family_assumes_need_not_be_stated(tmp_path: Path) -> None:
    config = {"architectures": ["Gemma2ForCausalLM"], "layer_types": ["sliding_attention", "full_attention"]}
    assert info_of(tmp_path, config=config).hf_config["sliding_window"] == 4096


@pytest.mark.parametrize(
    "key", ["query_pre_attn_scalar", "attn_logit_softcapping", "rope_local_base_freq", "sliding_window_pattern"]
)
@pytest.mark.parametrize("value", [0, -1, "8", True, math.nan])
def test_what_only_some_families_state_is_checked_too(tmp_path: Path, key: str, value: object) -> None:
    message = refusal(tmp_path, config={"architectures": ["Gemma3ForCausalLM"], key: value})
    assert f"config.json: key {key!r} is " in message


@pytest.mark.parametrize(
    "config",
    [
        {"head_dim": None, "num_key_value_heads": None, "sliding_window": None, "layer_types": None},
        {"rope_scaling": {"rope_type": None, "type": "linear", "factor": 2}},
        {"rope_scaling": {}, "rope_parameters": {}, "partial_rotary_factor": None},
        {"rope_parameters": {"rope_type": None, "rope_theta": 7}, "partial_rotary_factor": 0.5},
        {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8},
        {"quantization_config": None, "torch_dtype": "half", "eos_token_id": None, "bos_token_id": [0]},
    ],
)
def test_what_says_nothing_unusual_is_accepted(tmp_path: Path, config: dict[str, Any]) -> None:
    info = info_of(tmp_path, config=config)
    assert info.hf_config["head_dim"] == 16
    assert rope_parameters(info.hf_config, 16).rotary_size in (8, 16)


def test_a_window_that_some_layers_need_must_have_a_size(tmp_path: Path) -> None:
    message = refusal(tmp_path, config={"layer_types": ["full_attention", "sliding_attention"]})
    assert "key 'sliding_window' is missing" in message


def test_the_model_of_a_plugin_may_have_other_layers_and_scalings(tmp_path: Path) -> None:
    config = {
        "architectures": ["HybridForCausalLM"],
        "model_type": "hybrid",
        "layer_types": ["mamba", "full_attention"],
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
    }
    info = info_of(tmp_path, config=config, without=("intermediate_size",))
    assert info.hf_config["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, value) for key in ("eos_token_id", "bos_token_id") for value in NO_TOKEN_ID),
        *(("temperature", value) for value in (*NO_POSITIVE_NUMBER[2:], 101)),
        *(("top_p", value) for value in (*NO_POSITIVE_NUMBER[1:], 1.0000001)),
        *(("min_p", value) for value in (*NO_POSITIVE_NUMBER[2:], 1.01)),
        *(("top_k", value) for value in (math.inf, math.nan, -2, 2**63, 1.5, True, "50", [50])),
        *(("repetition_penalty", value) for value in NO_POSITIVE_NUMBER[1:]),
        *(("max_new_tokens", value) for value in (0, -1, 2.0, True, 2**63)),
        *(("do_sample", value) for value in (1, "yes")),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_generation_default_that_cannot_be_used_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    without = ("bos_token_id",)  # the configuration's goes first
    message = refusal(tmp_path, generation={key: value}, without=without)
    assert f"generation_config.json: key {key!r} is " in message


def test_generation_defaults_of_null_state_nothing(tmp_path: Path) -> None:
    assert info_of(tmp_path, generation={"temperature": None, "top_k": None}).generation_config == {}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.0.self_attn.q_proj.bias"])
def test_a_weight_that_is_no_plain_number_is_refused(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    root = write_directory(tmp_path)
    tensors = {key: torch.from_numpy(array) for key, array in llama_arrays().items()}
    save_file({**tensors, name: torch.zeros(64).to(dtype)}, root / "model.safetensors")
    with pytest.raises(ModelFormatError, match="has the dtype") as caught:
        read_hf_info(files_of(root), "safetensors")
    assert f"model.safetensors: tensor {name!r} has the dtype {str(dtype).removeprefix('torch.')}" in str(caught.value)


def test_stored_masks_are_no_weights(tmp_path: Path) -> None:
    masks = {"model.layers.0.attn.bias": np.ones(4, np.bool_), "model.position_ids": np.arange(4)}
    assert info_of(tmp_path, arrays={**llama_arrays(), **masks}).num_layers == 2


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_configuration_must_be_a_regular_file_of_sensible_size(tmp_path: Path, name: str) -> None:
    root = write_directory(tmp_path, generation={})
    files = files_of(root)
    text = (root / name).read_text()
    (root / name).write_text(json.dumps({**json.loads(text), "padding": "x" * (16 << 20)}))
    with pytest.raises(ModelFormatError, match=rf"/{name}: is larger than 16 MiB"):
        read_hf_info(files, "safetensors")
    for make in (os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")):
        (root / name).unlink() if not (root / name).is_dir() else (root / name).rmdir()
        make(root / name)
        with pytest.raises(ModelFormatError, match=rf"/{name}: (isn't a regular file|can't be read)"):
            read_hf_info(files, "safetensors")
