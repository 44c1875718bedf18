"""The plugin: asks a process with torch what transformers makes of a model, and builds it in a worker. Torch-free."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from corefw.interfaces.model import ModelImplementation, ModelRequest
from corefw_models_transformers.inspection_cache import load_answer, store_answer
from corefw_models_transformers.inspection_call import inspect_elsewhere

if TYPE_CHECKING:
    from torch import nn

    from corefw.models.layers.context import BuildContext
    from corefw.sdk.config import ModelInfo

__all__ = ["TransformersModels"]


class TransformersModels(ModelImplementation):
    """Decoder-only models whose attention goes through transformers' attention interface."""

    name: ClassVar[str] = "transformers"

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str, str, bool], dict[str, Any]] = {}

    def supports(self, request: ModelRequest) -> str | None:
        reason = _not_a_directory(request.info)
        if reason is not None:
            return reason
        refused: str | None = self._answer(request).get("refused")
        return refused

    def describe(self, request: ModelRequest) -> ModelInfo:
        info, sizes = request.info, self._answer(request)["sizes"]
        return dataclasses.replace(
            info,
            hf_config={**info.hf_config, **sizes},
            max_position=sizes["max_position_embeddings"],
            vocab_size=sizes["vocab_size"],
        )

    def build(self, request: ModelRequest, build: BuildContext) -> nn.Module:
        from corefw_models_transformers.model import TransformersForCausalLM

        return TransformersForCausalLM(request, build)

    def _answer(self, request: ModelRequest) -> dict[str, Any]:
        info = request.info
        key = (info.files.root, info.architecture, request.dtype, request.trust_remote_code)
        if key not in self._answers:
            self._answers[key] = load_answer(request) or self._inspect(request)
        return self._answers[key]

    def _inspect(self, request: ModelRequest) -> dict[str, Any]:
        answer = inspect_elsewhere(request)
        store_answer(request, answer)
        return answer


def _not_a_directory(info: ModelInfo) -> str | None:
    if not all(path.endswith(".safetensors") for path in info.files.weights):
        return "the weights aren't .safetensors files"
    if not (Path(info.files.root) / "config.json").is_file():
        return "there is no config.json"
    return None
