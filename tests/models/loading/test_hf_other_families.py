"""Sizes of architectures that corefw has no class for."""

from __future__ import annotations

from pathlib import Path

import pytest

from corefw.builtins.model_loaders.safetensors import SafetensorsLoader
from corefw.errors import ModelFormatError
from corefw.models.loading.hf_config import check_sizes
from tests.models.loading.hf_directory import files_of, write_directory

SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "max_position_embeddings")


def test_sizes_are_found_under_the_names_of_other_families(tmp_path: Path) -> None:
    names = {"n_embd": 24, "n_layer": 3, "n_head": 3, "n_positions": 128}
    write_directory(
        tmp_path, config={"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", **names},
        without=(*SIZES, "intermediate_size", "head_dim"),
    )  # fmt: skip
    info = SafetensorsLoader().read_info(files_of(tmp_path))
    assert [info.hf_config[key] for key in SIZES] == [24, 3, 3, 3, 128]
    assert (info.hf_config["head_dim"], info.max_position, info.num_layers) == (8, 128, 3)
    check_sizes(info)


def test_a_size_that_is_not_stated_matters_only_once_a_class_needs_it(tmp_path: Path) -> None:
    write_directory(
        tmp_path,
        config={"architectures": ["OddForCausalLM"], "model_type": "odd"},
        without=("max_position_embeddings",),
    )
    info = SafetensorsLoader().read_info(files_of(tmp_path))
    assert info.max_position == 0
    with pytest.raises(ModelFormatError, match=r"doesn't state max_position_embeddings.*OddForCausalLM"):
        check_sizes(info)


def test_heads_that_do_not_divide_the_width_leave_the_head_size_open(tmp_path: Path) -> None:
    config = {"architectures": ["OddForCausalLM"], "model_type": "odd", "hidden_size": 50, "num_attention_heads": 4}
    write_directory(tmp_path, config={**config, "num_key_value_heads": 4}, without=("head_dim",))
    info = SafetensorsLoader().read_info(files_of(tmp_path))
    with pytest.raises(ModelFormatError, match="doesn't state head_dim"):
        check_sizes(info)
