"""Who computes a model: its class, else an implementation plugin, each asked once and with its reason."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from corefw.config.model_info import ModelFiles, ModelInfo
from corefw.errors import ConfigError
from corefw.interfaces.model import ModelImplementation, ModelRequest
from corefw.models.registry import choose_implementation


class Able(ModelImplementation):
    name = "able"

    def supports(self, request: ModelRequest) -> str | None:
        return None if request.dtype == "float32" else "only float32"

    def describe(self, request: ModelRequest) -> ModelInfo:
        return dataclasses.replace(request.info, max_position=77)

    def build(self, request: ModelRequest, build: Any) -> Any:
        raise NotImplementedError


class Unable(Able):
    name = "unable"

    def supports(self, request: ModelRequest) -> str | None:
        return "it never can"


class Plugins:
    """A plugin set in memory, with the face of the manager that the registry uses."""

    def __init__(self, **implementations: type[ModelImplementation]) -> None:
        self.implementations = implementations

    def names(self, group: str) -> tuple[str, ...]:
        return ("KnownForCausalLM",) if group == "model_plugins" else tuple(self.implementations)

    def get(self, group: str, name: str) -> type[ModelImplementation]:
        return {"model_implementations": self.implementations}[group][name]


def asked(architecture: str, dtype: str = "float32") -> ModelRequest:
    files = ModelFiles(reference="m", source="local", root="/m", weights=())
    info = ModelInfo(
        files=files, loader="x", architecture=architecture, hf_config={}, checkpoint_dtype=dtype, max_position=0,
        vocab_size=0, eos_ids=(),
    )  # fmt: skip
    return ModelRequest(info=info, dtype=dtype)


def choose(request: ModelRequest, named: str = "auto", **implementations: type[ModelImplementation]) -> Any:
    plugins: Any = Plugins(**implementations)
    return choose_implementation(request, plugins, named)


def test_a_class_goes_first_and_nobody_else_is_asked() -> None:
    selection, info = choose(asked("KnownForCausalLM"), able=Able)
    assert (selection.chosen, info.max_position) == ("native", 0)
    assert "not able: not asked: native comes first" in selection.why


def test_without_a_class_the_first_that_can_computes_and_describes_the_model() -> None:
    selection, info = choose(asked("OtherForCausalLM"), unable=Unable, able=Able)
    assert (selection.chosen, info.max_position) == ("able", 77)
    assert (
        "not native: model architecture 'OtherForCausalLM' is not supported; known: KnownForCausalLM" in selection.why
    )
    assert "not unable: it never can" in selection.why


def test_a_name_forces_an_implementation_also_where_a_class_fits() -> None:
    selection, info = choose(asked("KnownForCausalLM"), "able", able=Able)
    assert (selection.chosen, info.max_position) == ("able", 77)
    assert selection.reason == "asked for by name"


def test_a_named_one_that_cannot_stops_the_start_with_its_reason() -> None:
    with pytest.raises(ConfigError, match="'able' was asked for, but can't be used: only float32"):
        choose(asked("KnownForCausalLM", "bfloat16"), "able", able=Able)
    with pytest.raises(ConfigError, match=r"'native' was asked for, but can't be used: .*'OtherForCausalLM'"):
        choose(asked("OtherForCausalLM"), "native", able=Able)


def test_nobody_stops_the_start_with_every_reason() -> None:
    with pytest.raises(ConfigError, match=r"not native: .*'OtherForCausalLM'.*; not able: only float32"):
        choose(asked("OtherForCausalLM", "bfloat16"), able=Able)


def test_without_any_implementation_the_start_names_the_pack() -> None:
    with pytest.raises(ConfigError, match="pip install corefw-models-transformers"):
        choose(asked("OtherForCausalLM"))
