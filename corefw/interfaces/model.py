"""ModelImplementation: computes models that no model class of ``corefw.model_plugins`` is made for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import nn

    from corefw.config.model_info import ModelInfo
    from corefw.models.layers.context import BuildContext

__all__ = ["ModelImplementation", "ModelRequest"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRequest:
    """A model, and how it is to be computed.

    Attributes:
        info: what its loader says. For an architecture without a model class, sizes that the configuration doesn't
            state under their usual name are None in ``hf_config`` (0 in ``max_position`` and ``vocab_size``).
        dtype: of parameters and activations, resolved. In ``float32`` a token's result must not depend on the batch.
        trust_remote_code: the operator allows code from the model's directory to run. Without it, none may.
        cache_dir: where what takes long to find out may be kept; may not exist yet. None for nowhere.
    """

    info: ModelInfo
    dtype: str
    trust_remote_code: bool = False
    cache_dir: str | None = None


class ModelImplementation(ABC):
    """A way to compute many architectures (group ``corefw.model_implementations``).

    Asked in the front end, once, for a model whose architecture has no class in ``corefw.model_plugins``, or when
    ``--model-impl`` names it; ``build`` is then called in every worker, on another instance of the class. Importing the
    module must not import torch, nor may ``supports`` and ``describe``: what needs torch goes to a process of its own.

    Attributes:
        name: the plugin's name, as ``--model-impl`` takes it.
    """

    name: ClassVar[str]
    api_version: ClassVar[int] = 1

    @abstractmethod
    def supports(self, request: ModelRequest) -> str | None:
        """None when it can compute the model, else one sentence why not. May read the model's small files."""

    @abstractmethod
    def describe(self, request: ModelRequest) -> ModelInfo:
        """The information of a supported model, with every size that the engine asks for.

        Returns:
            ``request.info`` with ``max_position``, ``vocab_size``, and in ``hf_config``: ``hidden_size``,
            ``num_hidden_layers``, ``num_attention_heads``, ``num_key_value_heads``, ``head_dim``; where layers differ
            ``layer_types`` and ``sliding_window``; ``attn_logit_softcapping`` where scores are capped.
        """

    @abstractmethod
    def build(self, request: ModelRequest, build: BuildContext) -> nn.Module:
        """The model, without weights: a module as ``corefw.model_plugins`` hold it. Called in a worker.

        Args:
            request: its ``info`` is what ``describe`` returned.
            build: device, arithmetic, ops, attention backend.

        Raises:
            ConfigError: it can't be built as configured; with the remedy.
        """
