"""Which quantisation method is taken, and why."""

from __future__ import annotations

from typing import Any

import pytest

from corefw.builtins.quantization.gguf import GGUFBlocks
from corefw.config.engine_config import ModelConfig
from corefw.engine.quantization_choice import choose_quantization
from corefw.errors import ConfigError
from corefw.interfaces.quantization import QuantizationRequest
from corefw.interfaces.selection import Selection
from corefw.testing.configs import fake_model_info


class Plugins:
    """The face of the manager that is used here."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self.recorded: list[Selection] = []

    def names(self, group: str) -> tuple[str, ...]:
        assert group == "quantization_methods"
        return self._names

    def get(self, group: str, name: str) -> Any:
        assert (group, name) == ("quantization_methods", "gguf")
        return GGUFBlocks

    def record(self, selection: Selection) -> None:
        self.recorded.append(selection)


GGUF = fake_model_info(quantization="gguf", block_types=("Q4_1",))
PLAIN = fake_model_info()


def choose(
    info: Any = GGUF, dtype: str = "bfloat16", implementation: str = "native", plugins: Any = None, **model: Any
) -> tuple[str | None, tuple[tuple[str, str, str], ...]]:
    request = QuantizationRequest(info=info, dtype=dtype, device_type="cpu")
    return choose_quantization(ModelConfig(**model), request, implementation, plugins or Plugins("gguf"))


def test_a_gguf_file_keeps_its_blocks_by_default() -> None:
    name, decisions = choose()
    assert name == "gguf"
    assert decisions == (("quantization", "gguf", "the files are made for it, and --dtype is auto"),)


def test_plain_weights_need_no_decision() -> None:
    assert choose(PLAIN) == (None, ())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"dtype": "float32"}, "float32 is computed with dequantised weights"),
        ({"implementation": "transformers"}, "the model implementation 'transformers' holds plain weights"),
        ({"plugins": Plugins()}, "no plugin brings the quantization method 'gguf'"),
    ],
)
def test_without_the_method_weights_are_dequantised_and_it_is_said_why(settings: dict[str, Any], reason: str) -> None:
    name, ((what, chosen, why),) = choose(**settings)
    assert (name, what, chosen) == (None, "quantization", "none")
    assert why.startswith(f"weights are dequantised: {reason}")


def test_a_dtype_that_was_asked_for_is_that_of_the_weights() -> None:
    request = QuantizationRequest(info=GGUF, dtype="bfloat16", device_type="cpu")
    name, ((_, _, why),) = choose_quantization(ModelConfig(dtype="bfloat16"), request, "native", Plugins("gguf"))
    assert name is None
    assert "--quantization gguf keeps them as they are" in why
    named = ModelConfig(dtype="bfloat16", quantization="gguf")
    assert choose_quantization(named, request, "native", Plugins("gguf"))[0] == "gguf"


def test_none_is_none() -> None:
    assert choose(quantization="none") == (None, (("quantization", "none", "set by --quantization"),))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "float32"}, "'gguf' was asked for, but can't be used: float32 is computed with dequantised weights"),
        ({"info": PLAIN}, "the model isn't a GGUF file with block types"),
        ({"implementation": "transformers"}, "holds plain weights"),
    ],
)
def test_a_method_that_was_asked_for_and_cannot_serve_stops_the_start(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose(**settings, quantization="gguf")


def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"there is no quantization method 'awq'.*gguf"):
        choose(quantization="awq")
