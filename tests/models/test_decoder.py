from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from corefw.errors import ConfigError, ModelFormatError
from corefw.models.llama import LlamaForCausalLM
from corefw.testing.paged_loop import PagedLoop, cpu_build_context, model_info
from corefw.testing.tiny_models import llama_tensors, tiny_llama_config
from tests.models.threads import one_thread  # noqa: F401

Weights = dict[str, torch.Tensor]


def build(weights: Weights | None = None, taps: frozenset[str] = frozenset(), **changes: Any) -> LlamaForCausalLM:
    config = tiny_llama_config(**changes)
    model = LlamaForCausalLM(model_info(config), cpu_build_context(taps=taps))
    model.load_weights((llama_tensors(config) if weights is None else weights).items())
    return model


def weights_of(**changes: Any) -> Weights:
    return llama_tensors(tiny_llama_config(**changes))


def test_every_weight_of_the_checkpoint_is_taken() -> None:
    weights = weights_of(tie_word_embeddings=False, mlp_bias=True)
    model = build(weights, tie_word_embeddings=False, mlp_bias=True)
    assert sum(p.numel() for p in model.parameters()) == sum(t.numel() for t in weights.values())
    assert not any(p.requires_grad for p in model.parameters())


def test_missing_tensors_are_named_as_the_checkpoint_names_them() -> None:
    weights = weights_of()
    del weights["model.layers.1.self_attn.k_proj.weight"]
    del weights["model.norm.weight"]
    with pytest.raises(ModelFormatError, match=r"misses 2 .*model\.layers\.1\.self_attn\.k_proj\.weight") as caught:
        build(weights)
    assert "model.norm.weight" in str(caught.value)


def test_a_head_that_is_not_tied_must_be_there() -> None:
    with pytest.raises(ModelFormatError, match=r"misses 1 .*: lm_head\.weight"):
        build(weights_of(), tie_word_embeddings=False)


@pytest.mark.parametrize("name", ["model.layers.9.mlp.up_proj.weight", "model.layers.0.mlp.router.weight", "vision.x"])
def test_unexpected_tensors_are_named(name: str) -> None:
    with pytest.raises(ModelFormatError, match=f"unexpected 1 .*{name}"):
        build({**weights_of(), name: torch.zeros(1)})


def test_a_wrong_shape_is_named_with_the_right_one() -> None:
    weights = {**weights_of(), "model.layers.2.mlp.down_proj.weight": torch.zeros(48, 79)}
    with pytest.raises(ModelFormatError, match=r"layers\.2\.mlp\.down_proj\.weight.*\[48, 79\].*\[48, 80\]"):
        build(weights)


def test_a_tensor_that_comes_twice_is_refused() -> None:
    weights = weights_of()
    model = LlamaForCausalLM(model_info(tiny_llama_config()), cpu_build_context())
    twice = [*weights.items(), ("model.layers.0.self_attn.q_proj.weight", torch.zeros(48, 48))]
    with pytest.raises(ModelFormatError, match=r"q_proj\.weight.*twice"):
        model.load_weights(twice)


def test_tables_that_old_checkpoints_carry_are_ignored_and_so_is_the_head_of_a_tied_model() -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4), "lm_head.weight": torch.zeros(259, 48)}
    model = build({**weights_of(), **extra})
    assert model.lm_head.weight is model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, weights_of()["model.embed_tokens.weight"])


def test_weights_of_another_dtype_are_converted() -> None:
    half = {name: tensor.to(torch.bfloat16) for name, tensor in weights_of().items()}
    assert build(half).norm.weight.dtype == torch.float32


def test_another_activation_is_refused() -> None:
    with pytest.raises(ModelFormatError, match="'gelu'; only silu"):
        build(hidden_act="gelu")


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_without_taps_the_built_model_contains_none() -> None:
    model = build()
    assert model.taps == {}
    assert hooks(model) == 0
    kinds = {type(module).__name__ for module in model.modules()}
    assert not [kind for kind in kinds if "Tap" in kind]


def logits(model: LlamaForCausalLM) -> torch.Tensor:
    return PagedLoop(model, cpu_build_context()).step({0: list(range(20))})[0]


def test_each_tap_point_shows_its_tensors_and_changes_nothing() -> None:
    names = frozenset({"layers.1.residual", "layers.2.qkv", "lm_head.input", "logits"})
    model = build(taps=names)
    assert set(model.taps) == names
    assert hooks(model) == len(names)
    seen: dict[str, tuple[torch.Tensor, ...]] = {}
    for name, tap in model.taps.items():
        tap.observers.append(lambda *tensors, name=name: seen.update({name: tensors}))
    result = logits(model)
    assert torch.equal(result, logits(build()))
    shapes = {name: [tuple(t.shape) for t in tensors] for name, tensors in seen.items()}
    assert shapes == {
        "layers.1.residual": [(20, 48)],
        "layers.2.qkv": [(20, 48), (20, 16), (20, 16)],
        "lm_head.input": [(20, 48)],
        "logits": [(20, 259)],
    }
    assert torch.equal(seen["logits"][0], result)


def test_the_residual_tap_shows_the_stream_that_the_next_norm_reads() -> None:
    model = build(taps=frozenset({"layers.2.residual", "lm_head.input"}))
    seen: dict[str, torch.Tensor] = {}
    for name, tap in model.taps.items():
        tap.observers.append(lambda tensor, name=name: seen.update({name: tensor}))
    logits(model)
    stream = seen["layers.2.residual"]
    expected = stream * torch.rsqrt(stream.square().mean(-1, keepdim=True) + 1e-5) * model.norm.weight
    torch.testing.assert_close(seen["lm_head.input"], expected)


def test_an_observer_may_replace_what_it_sees() -> None:
    model = build(taps=frozenset({"layers.0.residual", "logits"}))
    model.taps["logits"].observers.append(lambda tensor: tensor * 0 + 5)
    assert torch.equal(logits(model), torch.full((20, 259), 5.0))
    model.taps["logits"].observers.clear()
    plain = logits(model)
    model.taps["layers.0.residual"].observers.append(lambda stream: stream * 0)
    assert not torch.allclose(logits(model), plain)


def test_an_unknown_tap_point_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'layers\.7\.residual'.*layers\.2\.residual"):
        build(taps=frozenset({"layers.7.residual"}))
