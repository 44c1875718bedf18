"""Configurations as they are published, which spell things otherwise than transformers saves them today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from corefw.errors import ModelFormatError
from corefw.models.shape import layer_kind, sliding_window
from corefw.testing.paged_loop import cpu_build_context
from corefw.testing.tiny_models import write_tiny
from tests.models.families import loop_over, ours, prompt, their_logits, theirs
from tests.models.threads import one_thread  # noqa: F401


def respell(path: Path, removed: tuple[str, ...], **added: Any) -> None:
    file = path / "config.json"
    config = {key: value for key, value in json.loads(file.read_text()).items() if key not in removed}
    file.write_text(json.dumps(config | added))


PUBLISHED: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "gemma3 with an integer pattern and a local base": (
        "gemma3_text",
        ("layer_types", "rope_parameters"),
        {
            "sliding_window_pattern": 3,
            "rope_theta": 90_000.0,
            "rope_local_base_freq": 700.0,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        },
    ),
    "gemma3 with as little as possible": (
        "gemma3_text",
        ("layer_types", "rope_parameters", "attn_logit_softcapping", "tie_word_embeddings", "hidden_activation"),
        {},
    ),
    "gemma2 with as little as possible": (
        "gemma2",
        (
            "layer_types",
            "rope_parameters",
            "attn_logit_softcapping",
            "final_logit_softcapping",
            "tie_word_embeddings",
            "hidden_activation",
            "query_pre_attn_scalar",
            "rms_norm_eps",
        ),
        {},
    ),
    "qwen2 with a window that isn't used": (
        "qwen2",
        ("layer_types", "rope_parameters"),
        {"use_sliding_window": False, "sliding_window": 9, "max_window_layers": 1, "rope_theta": 1e6},
    ),
    "qwen2 with a window in later layers": (
        "qwen2",
        ("layer_types",),
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen3 with another base": ("qwen3", ("layer_types", "rope_parameters"), {"rope_theta": 1e6, "rope_scaling": None}),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_spelling_means_what_transformers_takes_it_for(name: str, tmp_path: Path) -> None:
    family, removed, added = PUBLISHED[name]
    respell(write_tiny(tmp_path, family), removed, **added)
    ids = prompt(80)
    expected = their_logits(theirs(tmp_path), ids)
    torch.testing.assert_close(loop_over(tmp_path).step({0: ids})[0], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("removed", [("rope_parameters",), ("rope_parameters", "original_max_position_embeddings")])
def test_phi3_with_an_older_name_of_long_rope(removed: tuple[str, ...], tmp_path: Path) -> None:
    factors = {"short_factor": [1.0, 1.05, 1.1, 1.3], "long_factor": [1.0, 2.0, 4.5, 9.0]}
    respell(
        write_tiny(tmp_path, "phi3", max_position_embeddings=8192),
        removed,
        rope_scaling={"type": "yarn", **factors},
        rope_theta=10_000.0,
    )
    ids = prompt(80)
    expected = their_logits(theirs(tmp_path), ids)
    torch.testing.assert_close(loop_over(tmp_path).step({0: ids})[0], expected, rtol=0, atol=1e-4)


def test_beyond_its_context_a_dynamic_model_computes_what_transformers_does_token_by_token(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
    model = theirs(write_tiny(tmp_path, "llama", max_position_embeddings=24, rope_parameters=rope))
    start = torch.tensor([[11]])
    out = model.generate(
        start, attention_mask=torch.ones_like(start), max_new_tokens=60, min_new_tokens=60, do_sample=False,
        pad_token_id=0, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    ours_logits = loop_over(tmp_path).step({0: out.sequences[0, :-1].tolist()})[0]
    torch.testing.assert_close(ours_logits, torch.cat(out.logits), rtol=0, atol=1e-4)


def test_long_contexts_of_phi3_use_the_long_factors(tmp_path: Path) -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0, 1.05, 1.1, 1.3],
        "long_factor": [1.0, 2.0, 4.5, 9.0],
    }
    model = theirs(write_tiny(tmp_path, "phi3", rope_parameters=rope, original_max_position_embeddings=64))
    ids = prompt(90)
    loop = loop_over(tmp_path, max_model_len=128)
    torch.testing.assert_close(loop.step({0: ids})[0], their_logits(model, ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text"])
def test_embeddings_are_scaled_by_what_the_dtype_holds(family: str, tmp_path: Path) -> None:
    write_tiny(tmp_path, family)
    half = theirs(tmp_path).to(torch.bfloat16)
    ids = torch.tensor(prompt(50))
    model = ours(tmp_path, cpu_build_context("bfloat16"))
    assert torch.equal(model.embed(ids), half.model.embed_tokens(ids))


def test_an_encoder_of_the_family_is_refused(tmp_path: Path) -> None:
    respell(write_tiny(tmp_path, "gemma3_text"), (), use_bidirectional_attention=True)
    with pytest.raises(ModelFormatError, match="use_bidirectional_attention"):
        ours(tmp_path, cpu_build_context())


def test_a_kind_of_layer_that_is_not_known_is_refused(tmp_path: Path) -> None:
    respell(write_tiny(tmp_path, "qwen3"), (), layer_types=["full_attention", "linear_attention", "full_attention"])
    with pytest.raises(ModelFormatError, match=r"'linear_attention', expected .* full_attention, sliding_attention"):
        ours(tmp_path, cpu_build_context())


def test_too_few_layer_types_are_refused() -> None:
    with pytest.raises(ModelFormatError, match="1 entries, but there is a layer 1"):
        layer_kind({"layer_types": ["full_attention"]}, 1)


def test_a_family_without_pattern_has_its_window_in_every_layer() -> None:
    assert [sliding_window({"sliding_window": 5, "model_type": "mistral"}, index) for index in (0, 7)] == [5, 5]
    assert sliding_window({"sliding_window": None, "model_type": "phi3"}, 0) is None
