from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from corefw.errors import ModelFormatError
from corefw.models.layers.rope import RotaryEmbedding, rope_parameters
from corefw.testing.paged_loop import cpu_build_context

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1 + 0.05 * index for index in range(16)],
    "long_factor": [1 + index**1.5 for index in range(16)],
}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"rope_theta": 5e5},
    {"rope_theta": 1e5, "rope_scaling": {"type": "linear", "factor": 4.0}},
    {"rope_theta": 1e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 777.0}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 8.0, "beta_fast": 16, "beta_slow": 2, "truncate": False}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 8.0, "mscale": 1.4, "mscale_all_dim": 0.6}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 8.0, "mscale": 1.4, "attention_factor": 0.7}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 0.5}},
    {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    {"rope_scaling": {**LONG, "original_max_position_embeddings": 512}},
    {"rope_scaling": {**LONG, "original_max_position_embeddings": 512, "factor": 16.0}},
    {"rope_scaling": {**LONG, "original_max_position_embeddings": 512, "attention_factor": 1.1}},
]


def build(config: dict[str, Any], head_size: int = 32, max_model_len: int = 300) -> RotaryEmbedding:
    config = {"max_position_embeddings": 512, **config}
    return RotaryEmbedding(
        rope_parameters(config, head_size), head_size, cpu_build_context(max_model_len=max_model_len)
    )


def reference_for(settings: dict[str, Any], **sizes: int) -> LlamaRotaryEmbedding:
    return LlamaRotaryEmbedding(
        LlamaConfig(
            **{"hidden_size": 64, "num_attention_heads": 2, "max_position_embeddings": 512, **sizes}, **settings
        )
    )


@pytest.mark.parametrize("settings", SETTINGS)
def test_every_spelling_turns_heads_as_transformers_does(settings: dict[str, Any]) -> None:
    reference = reference_for(copy.deepcopy(settings))
    query, key = torch.rand(9, 64) * 2 - 1, torch.rand(9, 32) * 2 - 1
    positions = torch.tensor([0, 1, 2, 63, 64, 65, 200, 298, 299])
    cos, sin = reference(query, positions[None])
    expected = apply_rotary_pos_emb(
        query.view(1, 9, 2, 32).transpose(1, 2), key.view(1, 9, 1, 32).transpose(1, 2), cos, sin
    )
    turned = build(settings)(positions, query, key)
    for ours, theirs in zip(turned, expected, strict=True):
        # An angle of 299 has a resolution of 3e-5 in float32, and two products of at most 1 are added.
        torch.testing.assert_close(ours, theirs.transpose(1, 2).reshape(9, -1), rtol=0, atol=7e-5)


def test_dynamic_scaling_turns_a_position_as_the_last_of_its_sequence() -> None:
    settings = {"rope_scaling": {"rope_type": "dynamic", "factor": 3.0}}
    ours = build({"max_position_embeddings": 40, **settings}).cos_sin
    for position in (0, 20, 39, 40, 41, 100, 299):
        fresh = reference_for(copy.deepcopy(settings), max_position_embeddings=40)
        cos, sin = fresh(torch.zeros(1), torch.tensor([[position]]))
        expected = torch.cat((cos[0, 0, :16], sin[0, 0, :16]))
        torch.testing.assert_close(ours[position], expected, rtol=0, atol=2e-5)


def test_dynamic_scaling_of_a_position_does_not_depend_on_the_longest_context() -> None:
    settings = {"rope_scaling": {"rope_type": "dynamic", "factor": 3.0}, "max_position_embeddings": 40}
    short, long = (build(settings, max_model_len=length).cos_sin for length in (90, 300))
    torch.testing.assert_close(short, long[:90], rtol=0, atol=1e-5)
    torch.testing.assert_close(long[:40], build({}).cos_sin[:40], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("max_model_len", "length"), [(128, 128), (129, 129)])
def test_long_rope_is_long_at_every_position_where_contexts_can_be(max_model_len: int, length: int) -> None:
    settings = {"rope_scaling": {**LONG, "original_max_position_embeddings": 128}}
    reference = reference_for(copy.deepcopy(settings))
    cos, sin = reference(torch.zeros(1), torch.arange(length)[None])
    expected = torch.cat((cos[0, :, :16], sin[0, :, :16]), -1)
    torch.testing.assert_close(build(settings, max_model_len=max_model_len).cos_sin, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["su", "yarn", "longrope"])
def test_old_names_of_long_rope_and_a_length_beside_it_are_understood(name: str) -> None:
    scaling = {key: value for key, value in LONG.items() if key != "rope_type"}
    old = {"rope_scaling": {**scaling, "type": name}, "original_max_position_embeddings": 128}
    new = {"rope_scaling": {**LONG, "original_max_position_embeddings": 128}}
    assert torch.equal(build(old).cos_sin, build(new).cos_sin)


def test_long_factors_of_the_wrong_number_are_refused() -> None:
    with pytest.raises(ModelFormatError, match=r"long_factor has 3 entries.*16"):
        build({"rope_scaling": {**LONG, "long_factor": [1, 2, 3], "original_max_position_embeddings": 128}})


def test_frequency_factors_of_a_file_divide_the_inverse_frequencies() -> None:
    plain = build({}).cos_sin
    factors = [1.0 + index for index in range(16)]
    scaled = build({"rope_freq_factors": factors}).cos_sin
    for index, factor in enumerate(factors):
        angle = 10_000 ** (-2 * index / 32) / factor
        assert math.isclose(float(scaled[1, index]), math.cos(angle), abs_tol=1e-6)
        assert math.isclose(float(scaled[1, 16 + index]), math.sin(angle), abs_tol=1e-6)
    assert torch.equal(plain[:, 0], scaled[:, 0])


def test_frequency_factors_of_the_wrong_number_are_refused() -> None:
    with pytest.raises(ModelFormatError, match=r"3 entries.*16"):
        build({"rope_freq_factors": [1.0, 2.0, 3.0]})


def test_a_partly_rotated_head_keeps_its_rest() -> None:
    query = torch.randn(3, 32)
    turned, _ = build({"partial_rotary_factor": 0.25})(torch.tensor([5, 6, 7]), query, query.clone())
    assert torch.equal(turned[:, 8:], query[:, 8:])
    assert not torch.equal(turned[:, :8], query[:, :8])


def test_an_unknown_scaling_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ModelFormatError, match=r"'sliced'.*default, dynamic, linear, llama3"):
        rope_parameters({"rope_scaling": {"rope_type": "sliced"}}, 32)


def test_a_missing_parameter_of_a_scaling_is_named() -> None:
    with pytest.raises(ModelFormatError, match="'linear' needs 'factor'"):
        build({"rope_scaling": {"rope_type": "linear"}})
