"""Which layers are rounded to what, and what layers of ranks hold. Shapes: O rows, I inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from corefw.builtins.quantization.online import OnlineMethod
from corefw.errors import ConfigError
from corefw.interfaces.quantization import QuantizableLayer, QuantizationRequest, WeightConverter
from corefw.models.layers.blocks import BlockTensor
from corefw.models.layers.context import TensorParallel
from corefw.models.layers.linear import RowParallelLinear
from corefw.models.layers.packed_parameter import PackedWeight
from corefw.models.layers.product import name_weights
from corefw.models.layers.sharding import split_evenly
from corefw.models.quantization import QuantizationPlan, tell_layers
from corefw.testing.configs import fake_model_info
from corefw.testing.paged_loop import cpu_build_context

QKV, DOWN, HEAD = "layers.0.self_attn.qkv_proj", "layers.0.mlp.down_proj", "lm_head"


def layer(name: str, kind: str = "linear", parts: tuple[str, ...] = (), in_features: int = 64) -> QuantizableLayer:
    above = name.rpartition(".")[0]
    names = [[name, f"model.{name}", f"{above}.{part}", f"model.{above}.{part}"] for part in parts]
    return QuantizableLayer(name=name, kind=kind, in_features=in_features, names=names or [[name, f"model.{name}"]])


LAYERS = (
    layer(QKV, parts=("q_proj", "k_proj", "v_proj")),
    layer(DOWN),
    layer("layers.1.mlp.down_proj"),
    layer(HEAD, "lm_head"),
    layer("embed_tokens", "embedding"),
)


def request(asked: str | None = None, settings: dict[str, Any] | None = None, **info: Any) -> QuantizationRequest:
    return QuantizationRequest(
        info=fake_model_info(**info),
        dtype="bfloat16",
        device_type="cpu",
        named=True,
        asked=asked,
        settings=settings or {},
    )


def converter(asked: str | None = None, **settings: Any) -> WeightConverter:
    wanted = request(asked, settings)
    assert OnlineMethod().supports(wanted) is None
    return OnlineMethod().converter(wanted)


def held_types(made: WeightConverter) -> dict[str, str]:
    weight_OI = torch.randn(4, 64)
    held = {each.name: made.convert(each.name, weight_OI) for each in LAYERS}
    return {name: value.type.name for name, value in held.items() if isinstance(value, BlockTensor)}


def test_linear_layers_are_rounded_and_the_ends_of_the_vocabulary_stay() -> None:
    made = converter("int8_per_channel")
    told = made.plan(LAYERS)
    assert held_types(made) == {QKV: "Q8_0", DOWN: "Q8_0", "layers.1.mlp.down_proj": "Q8_0"}
    lines = [str(selection) for selection in told]
    assert "weights of layers.*.mlp.down_proj (2 layers): int8_per_channel_static (linear layers)" in lines
    assert "weights of lm_head: none (the head stays as it is unless lm_head is set)" in lines


def test_each_spec_has_its_block_type() -> None:
    made = converter("int4_per_group", lm_head="int8_dynamic")
    made.plan(LAYERS)
    assert set(made.formats()) == {"Q4_1", "W8A8"}
    assert (held_types(made)[DOWN], held_types(made)[HEAD]) == ("Q4_1", "W8A8")


def test_an_exact_target_goes_before_patterns_and_those_by_order() -> None:
    made = converter(
        targets={"layers.*.mlp.*": "int4_per_group", "re:layers": "int8_per_channel", f"model.{DOWN}": "int8_dynamic"}
    )
    made.plan(LAYERS)
    assert held_types(made) == {DOWN: "W8A8", "layers.1.mlp.down_proj": "Q4_1", QKV: "Q8_0"}
    assert made.remarks() == ()


def test_the_head_needs_its_own_name_as_a_target() -> None:
    made = converter(targets={"*": "int4_per_group"})
    made.plan(LAYERS)
    assert HEAD not in held_types(made)
    made = converter(targets={"lm_head": "int8_per_channel"})
    made.plan(LAYERS)
    assert held_types(made) == {HEAD: "Q8_0"}


def test_ignored_layers_stay_and_what_matches_nothing_is_told() -> None:
    made = converter("int8_per_channel", ignore=["re:.*self_attn.*", "layers.7.*"])
    made.plan(LAYERS)
    assert set(held_types(made)) == {DOWN, "layers.1.mlp.down_proj"}
    (remark,) = made.remarks()
    assert "ignore: no layer matches 'layers.7.*'" in remark


def test_parts_of_one_layer_may_not_differ() -> None:
    with pytest.raises(ConfigError, match=r"qkv_proj is one layer, but its parts would differ: .*q_proj"):
        converter("int8_per_channel", ignore=["*.q_proj"]).plan(LAYERS)
    made = converter("int8_per_channel", ignore=["*.q_proj", "*.k_proj", "*.v_proj"])
    made.plan(LAYERS)
    assert QKV not in held_types(made)


def test_parts_that_are_told_the_same_in_other_words_are_one_layer() -> None:
    plain = converter(targets={"*.q_proj": "none", DOWN: "int8_per_channel"}, ignore=["*.k_proj"])
    plain.plan(LAYERS)
    assert held_types(plain) == {DOWN: "Q8_0"}
    spelt_out = {"weight": "int8_per_channel_static", "activation": "none"}
    rounded = converter(targets={"*.q_proj": spelt_out, "re:.*[kv]_proj": "int8_per_channel"})
    rounded.plan(LAYERS)
    assert held_types(rounded) == {QKV: "Q8_0"}


def test_a_target_without_a_part_for_the_layer_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"int8_per_channel_weight_only has no part for linear layers"):
        converter(targets={DOWN: "int8_per_channel_weight_only"}).plan(LAYERS)


def test_rows_that_groups_cannot_fill_stay_and_it_is_said() -> None:
    made = converter("int4_per_group")
    (told,) = made.plan([layer(DOWN, in_features=40)])
    assert "its 40 inputs aren't whole groups of 32" in str(told)
    weight = torch.randn(4, 40)
    assert made.convert(DOWN, weight) is weight


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (request("fp8_per_tensor"), "there is nothing that computes fp8_per_tensor_static"),
        (request("int4_per_group", {"linear": {"activation": "int8_per_token"}}), "int4_per_group_static, inputs int8"),
        (request(None, {"linear": {"activation": "int8_per_token"}}), "need weights that are rounded, too"),
        (request("int8_per_channel_weight_only"), "for layers of experts alone"),
        (request("online"), "needs --quantization-config"),
        (request("int8_per_channel", quantization="gguf", block_types=("Q4_1",)), "rounded already"),
    ],
)
def test_what_cannot_be_done_is_said(wanted: QuantizationRequest, reason: str) -> None:
    assert reason in str(OnlineMethod().supports(wanted))


@pytest.mark.parametrize("asked", ["int8_per_channel", "int8_dynamic", "int4_per_group"])
def test_a_row_is_rounded_alike_on_however_many_ranks(asked: str) -> None:
    weight_OI = torch.randn(6, 128)
    parts = []
    for rank, size in ((0, 1), (0, 2), (1, 2)):
        parts.append(_held(asked, weight_OI, TensorParallel(rank, size)))
    assert torch.equal(parts[0], torch.cat(parts[1:], dim=1))


def _held(asked: str, weight_OI: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """The bytes of a row-parallel layer's rows."""
    made = converter(asked)
    build = replace(cpu_build_context(), quantization=QuantizationPlan(made, frozenset(made.formats())), tp=tp)
    row_parallel = RowParallelLinear(split_evenly("inputs", 128, tp), 6, bias=False, build=build)
    model = torch.nn.ModuleDict({"down_proj": row_parallel})
    name_weights(model)
    assert build.quantization is not None
    tell_layers(model, build.quantization)
    weight: Any = row_parallel.weight
    weight.load(weight_OI)
    settled = weight.settled()
    assert isinstance(settled, PackedWeight)
    return settled.bytes.view(6, -1)
