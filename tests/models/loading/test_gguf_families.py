"""Tiny random models of transformers come back from GGUF with equal weights and an equal configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers

from corefw.builtins.model_loaders.gguf import GGUFLoader
from corefw.config.model_info import ModelFiles, ModelInfo
from corefw.errors import ModelFormatError
from corefw.models.loading.gguf_architectures import ARCHITECTURES
from corefw.models.loading.gguf_config import read_gguf_info
from corefw.models.loading.gguf_file import GGUFFile
from tests.models.loading.family_gguf import FAMILIES, NUM_LAYERS, export, exported_state, tiny_model
from tests.models.loading.tiny_gguf import add_value

# What a file can't say: training, generation and bookkeeping.
_NOT_IN_FILES = frozenset(
    {
        "architectures",
        "attention_dropout",
        "dtype",
        "initializer_range",
        "max_window_layers",
        "pad_token_id",
        "transformers_version",
        "use_cache",
    }
)


def files_of(path: Path) -> ModelFiles:
    return ModelFiles(reference=str(path), source="gguf_file", root=str(path.parent), weights=(str(path),))


def comparable(config: Any) -> dict[str, Any]:
    values = {key: value for key, value in config.to_dict().items() if key not in _NOT_IN_FILES}
    rope = values["rope_parameters"]
    # transformers works this out from the two context lengths where it isn't written.
    rope.pop("factor", None) if rope.get("rope_type") == "longrope" else None
    return values


@pytest.mark.parametrize("name", FAMILIES)
def test_an_exported_model_comes_back_with_equal_weights(tmp_path: Path, name: str) -> None:
    model = tiny_model(FAMILIES[name])
    loader = GGUFLoader()
    info = loader.read_info(files_of(export(tmp_path / "model.gguf", FAMILIES[name], model)))
    assert info.architecture == type(model).__name__
    weights = dict(loader.weights(info, torch.float32))
    expected = exported_state(model)
    assert weights.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(weights[key], tensor), key


@pytest.mark.parametrize("name", FAMILIES)
def test_an_exported_models_configuration_is_what_transformers_makes_of_its_own(tmp_path: Path, name: str) -> None:
    family = FAMILIES[name]
    info = GGUFLoader().read_info(files_of(export(tmp_path / "model.gguf", family, tiny_model(family))))
    values = dict(info.hf_config)
    flat = {"rope_theta": values.pop("rope_theta", None), **(values.pop("rope_scaling", None) or {})}
    values.setdefault("rope_parameters", {"rope_type": "default", **flat})
    assert comparable(type(family.config)(**values)).items() >= comparable(family.config).items()


def described(path: Path, architecture: str, **changes: Any) -> ModelInfo:
    """The header alone of a file with these keys, without a prefix."""
    writer = gguf.GGUFWriter(path, architecture)
    metadata = {
        "block_count": NUM_LAYERS,
        "context_length": 512,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 32,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": 64,
        **changes,
    }
    for key, value in metadata.items():
        add_value(writer, f"{architecture}.{key}", value)
    for pattern, rule in ARCHITECTURES[architecture].tensors.items():
        layers = range(metadata["block_count"]) if "{layer}" in pattern else (0,)
        for layer in layers if rule.required else ():
            writer.add_tensor(pattern.format(layer=layer), torch.zeros(48, 64).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_gguf_info(GGUFFile(path), files_of(path), "gguf")


@pytest.mark.parametrize(("architecture", "depth"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemma_scales_by_width_over_heads(tmp_path: Path, architecture: str, depth: int) -> None:
    config = described(tmp_path / "large.gguf", architecture, block_count=depth).hf_config
    assert config["query_pre_attn_scalar"] == 16
    assert described(tmp_path / "small.gguf", architecture).hf_config["query_pre_attn_scalar"] == 32


def test_an_old_gemma_2_file_without_its_keys_has_the_familys_values(tmp_path: Path) -> None:
    config = described(tmp_path / "old.gguf", "gemma2", **{"attention.sliding_window": 0}).hf_config
    assert (config["sliding_window"], config["attn_logit_softcapping"], config["final_logit_softcapping"]) == (
        4096,
        50.0,
        30.0,
    )


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [(2, [True, False, True, False, True, False, True]), ([False, True] * 3 + [False], [False, True] * 3 + [False])],
)
def test_a_files_own_pattern_of_windows_is_followed(tmp_path: Path, pattern: Any, expected: list[bool]) -> None:
    config = described(tmp_path / "g.gguf", "gemma3", **{"attention.sliding_window_pattern": pattern}).hf_config
    assert [kind == "sliding_attention" for kind in config["layer_types"]] == expected


def test_a_gemma_3_without_windows_sees_everything_everywhere(tmp_path: Path) -> None:
    config = described(tmp_path / "g.gguf", "gemma3", **{"attention.sliding_window": 0}).hf_config
    assert config["layer_types"] == ["full_attention"] * NUM_LAYERS
    assert config["sliding_window"] is None


@pytest.mark.parametrize("pattern", [[True, False], [1, 2, 3, 4, 5, 6, 7]])
def test_an_unusable_pattern_of_windows_is_refused(tmp_path: Path, pattern: Any) -> None:
    with pytest.raises(ModelFormatError, match=r"gemma3\.attention\.sliding_window_pattern"):
        described(tmp_path / "g.gguf", "gemma3", **{"attention.sliding_window_pattern": pattern})


def test_one_table_of_long_factors_alone_is_refused(tmp_path: Path) -> None:
    family = FAMILIES["phi3 long"]
    path = export(tmp_path / "model.gguf", family, tiny_model(family))
    path.write_bytes(path.read_bytes().replace(b"rope_factors_short", b"rope_factors_shirt"))
    with pytest.raises(ModelFormatError, match=r"'rope_factors_short\.weight' is missing"):
        GGUFLoader().read_info(files_of(path))


def test_every_family_is_compared_with_its_class_in_transformers() -> None:
    tested = {gguf.MODEL_ARCH_NAMES[family.arch] for family in FAMILIES.values()}
    assert tested | {"llama"} == set(ARCHITECTURES)
    for architecture in ARCHITECTURES.values():
        assert hasattr(transformers, architecture.hf_class)
