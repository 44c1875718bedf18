"""What names and settings of quantisation mean."""

from __future__ import annotations

from typing import Any

import pytest

from corefw.config.quantization import SHORTHANDS, OnlineQuantization, QuantSpec, resolve_quantization
from corefw.errors import ConfigError

INT8, INT4, TOKENS = "int8_per_channel_static", "int4_per_group_static", "int8_per_token"


def test_a_shorthand_is_for_linear_layers_and_experts_and_leaves_the_head() -> None:
    both = QuantSpec(INT8)
    assert resolve_quantization("int8_per_channel", {}) == OnlineQuantization(linear=both, moe=both)
    assert resolve_quantization("int8_dynamic", {}).linear == QuantSpec(INT8, TOKENS)
    assert resolve_quantization("int4_per_group", {}).linear == QuantSpec(INT4)


def test_settings_go_over_a_shorthand_field_by_field() -> None:
    found = resolve_quantization("int8_per_channel", {"linear": {"activation": TOKENS}, "moe": {"weight": INT4}})
    assert found.linear == QuantSpec(INT8, TOKENS)
    assert found.moe == QuantSpec(INT4)
    assert resolve_quantization("int8_dynamic", {"linear": {"weight": INT4}}).linear == QuantSpec(INT4, TOKENS)


def test_what_is_not_given_is_the_default_and_none_is_not_rounded() -> None:
    assert resolve_quantization("int8_dynamic", {"linear": {"activation": None}}).linear == QuantSpec(INT8, TOKENS)
    assert resolve_quantization("int8_dynamic", {"linear": {"activation": "none"}}).linear == QuantSpec(INT8, "none")


def test_a_name_in_a_field_is_that_part_of_a_shorthand_or_a_weight_alone() -> None:
    found = resolve_quantization(None, {"linear": "int8_dynamic", "moe": "int8_per_channel_weight_only"})
    assert (found.linear, found.moe) == (QuantSpec(INT8, TOKENS), QuantSpec(INT8))
    assert resolve_quantization("online", {"lm_head": INT8}).lm_head == QuantSpec(INT8)


def test_targets_keep_their_order_and_both_kinds() -> None:
    found = resolve_quantization("online", {"targets": {"re:.*down": "int4_per_group", "*": "none"}, "ignore": ["a"]})
    assert [target.pattern for target in found.targets] == ["re:.*down", "*"]
    assert found.targets[1].linear == QuantSpec("none")
    assert found.ignore == ("a",)


@pytest.mark.parametrize(
    ("asked", "settings", "message"),
    [
        (
            None,
            {"linear": "int8_per_channel_weight_only"},
            "linear: int8_per_channel_weight_only has no part for linear",
        ),
        (None, {"lm_head": "nvfp4_per_token"}, "lm_head: nvfp4_per_token has no part for linear"),
        (None, {"linaer": "int4_per_group"}, "linaer: .* did you mean linear"),
        (None, {"linear": "int8_per_chanel"}, "linear: .* did you mean int8_per_channel"),
        (None, {"linear": {"wieght": INT8}}, "linear.wieght: .* did you mean weight"),
        (None, {"moe": {"activation": "int8_per_tokens"}}, "moe.activation: .* did you mean int8_per_token"),
        (None, {"moe": {"activation": INT8}}, "moe.activation: "),
        (None, {"linear": 8}, "linear: must be a name, or a mapping"),
        (None, {"linear": {"weight": 8}}, "linear.weight: must be a name, got int"),
        (None, {"targets": {"*": "int4_per_group"}, "linear": INT8}, "targets can't be beside linear"),
        ("int8_per_channel", {"targets": {"*": INT4}}, "targets can't be beside --quantization int8_per_channel"),
        (None, {"targets": {"re:(": INT4}}, "targets: .*no regular expression"),
        (None, {"targets": [INT4]}, "targets: must be a mapping"),
        (None, {"ignore": "lm_head"}, "ignore: must be a list"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_field(asked: str | None, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"--quantization-config: {message}"):
        resolve_quantization(asked, settings)


def test_only_these_shorthands_have_no_part_for_linear_layers() -> None:
    assert {name for name, parts in SHORTHANDS.items() if parts.linear is None} == {
        "int8_per_channel_weight_only",
        "nvfp4_per_token",
    }
