"""Which quantisation method is taken, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corefw.builtins.quantization.gguf import GGUFBlocks
from corefw.builtins.quantization.online import OnlineMethod
from corefw.config.engine_config import ModelConfig
from corefw.engine.quantization_choice import choose_quantization, read_quantization_config
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
        assert group == "quantization_methods"
        return {"gguf": GGUFBlocks, "online": OnlineMethod}[name]

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


def test_an_unknown_method_is_refused_with_near_ones() -> None:
    with pytest.raises(ConfigError, match=r"there is no quantization method 'gguff'; did you mean gguf"):
        choose(quantization="gguff")
    with pytest.raises(ConfigError, match=r"there is no quantization method 'int8_per_chanel'; .*int8_per_channel"):
        choose(quantization="int8_per_chanel")


@pytest.mark.parametrize("name", ["awq", "mxfp4"])
def test_names_that_defer_to_the_checkpoint_say_so_where_its_weights_are_plain(name: str) -> None:
    with pytest.raises(ConfigError, match=r"awq: that is how a checkpoint may be made|nothing that computes mxfp4"):
        choose(PLAIN, quantization=name, plugins=Plugins("gguf", "online"))


def test_a_shorthand_is_the_online_methods() -> None:
    name, ((_, chosen, why),) = choose(PLAIN, quantization="int8_per_channel", plugins=Plugins("gguf", "online"))
    assert (name, chosen, why) == ("online", "online", "set by --quantization int8_per_channel")


def test_settings_alone_are_the_online_methods_and_none_takes_none() -> None:
    settings = '{"linear": "int4_per_group"}'
    plugins = Plugins("gguf", "online")
    assert choose(PLAIN, quantization_config=settings, plugins=plugins)[0] == "online"
    with pytest.raises(ConfigError, match="can't be beside --quantization none"):
        choose(PLAIN, quantization="none", quantization_config=settings, plugins=plugins)


def test_a_file_of_settings_is_read_once_for_all_processes(tmp_path: Path) -> None:
    file = tmp_path / "bits.yaml"
    file.write_text("linear: int4_per_group\n", encoding="utf-8")
    read = read_quantization_config(ModelConfig(quantization_config=str(file)))
    assert read.quantization_config == '{"linear": "int4_per_group"}'
