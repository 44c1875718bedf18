"""A causal language model of transformers in two steps: hidden states of all tokens, then logits of some.

Shapes: T tokens, R rows to sample from, E model width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from corefw_models_transformers.refusal import Refused

__all__ = ["SplitModel"]


class _Output(BaseModelOutputWithPast):  # type: ignore[misc]
    """Whatever else a head looks for isn't there."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _Given(nn.Module):
    """Stands where the decoder stood, and gives the hidden states that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden_1RE: torch.Tensor | None = None

    @property
    def decoder(self) -> _Given:  # some heads go past the base model
        return self

    def forward(self, *_: Any, **__: Any) -> _Output:
        return _Output(last_hidden_state=self.hidden_1RE)


class SplitModel(nn.Module):
    """Takes a model apart; what its head does to the logits (scale, bias, cap) stays as the model has it.

    Args:
        model: a causal language model of transformers; changed.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        prefix = model.base_model_prefix
        if not prefix or prefix not in model._modules:
            raise Refused(f"{type(model).__name__} has no base model to take hidden states from")
        self.base = model._modules[prefix]
        self._given = _Given()
        model._modules[prefix] = self._given
        self.head = model

    def hidden(self, input_ids_T: torch.Tensor, positions_T: torch.Tensor, **others: Any) -> torch.Tensor:
        """[T] → [T, E]."""
        out = self.base(
            input_ids=input_ids_T[None], position_ids=positions_T[None], use_cache=False, return_dict=True, **others
        )
        hidden_TE: torch.Tensor = out.last_hidden_state[0]
        return hidden_TE

    def logits(self, hidden_RE: torch.Tensor) -> torch.Tensor:
        """[R, E] → [R, V]."""
        self._given.hidden_1RE = hidden_RE[None]
        try:
            out = self.head(inputs_embeds=self._given.hidden_1RE, use_cache=False, return_dict=True)
        finally:
            self._given.hidden_1RE = None
        logits_RV: torch.Tensor = out.logits[0]
        return logits_RV
