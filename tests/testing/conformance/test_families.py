"""The model classes of the other families pass the suite of models, too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from corefw.builtins.model_loaders.safetensors import SafetensorsLoader
from corefw.models.gemma2 import Gemma2ForCausalLM
from corefw.models.gemma3 import Gemma3ForCausalLM
from corefw.models.phi3 import Phi3ForCausalLM
from corefw.models.qwen2 import Qwen2ForCausalLM
from corefw.models.qwen3 import Qwen3ForCausalLM
from corefw.testing.model_suite import ModelSuite
from corefw.testing.tiny_models import write_tiny
from tests.models.families import CLASSES, read_info


class FamilySuite(ModelSuite):
    """With a model as transformers writes it."""

    family: ClassVar[str]

    @pytest.fixture(autouse=True)
    def _written(self, tmp_path: Path) -> None:
        self._info = read_info(write_tiny(tmp_path, self.family))

    def hf_config(self) -> Mapping[str, Any]:
        return self._info.hf_config

    def weights(self) -> Iterable[tuple[str, torch.Tensor]]:
        return SafetensorsLoader().weights(self._info, torch.float32)


class TestQwen2(FamilySuite):
    plugin = Qwen2ForCausalLM
    family = "qwen2"


class TestQwen3(FamilySuite):
    plugin = Qwen3ForCausalLM
    family = "qwen3"


class TestGemma2(FamilySuite):
    plugin = Gemma2ForCausalLM
    family = "gemma2"


class TestGemma3(FamilySuite):
    plugin = Gemma3ForCausalLM
    family = "gemma3_text"


class TestPhi3(FamilySuite):
    plugin = Phi3ForCausalLM
    family = "phi3"


def test_every_class_beside_llamas_has_its_suite() -> None:
    suites = {suite.plugin for suite in FamilySuite.__subclasses__()}
    assert suites == set(CLASSES.values()) - {CLASSES["LlamaForCausalLM"]}
