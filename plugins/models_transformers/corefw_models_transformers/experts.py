"""Experts of a mixture, one after the other, in an order that a token's neighbours don't change.

Shapes: T tokens, N experts, C choices a token, E model width, I inner width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from transformers.integrations.moe import ExpertsInterface

from corefw.errors import EngineError

__all__ = ["EXPERTS", "RECORDING_EXPERTS", "use_experts"]

EXPERTS = "corefw"
RECORDING_EXPERTS = "corefw_recording"


def use_experts(model: nn.Module, name: str) -> None:
    """Let every mixture of a model compute its experts by the function of that name."""
    module: Any
    for module in model.modules():
        if hasattr(module, "_is_expert_parallel"):  # what transformers' decorator for the interface leaves
            module.config._experts_implementation = name


def _compute(module: Any, hidden_TE: torch.Tensor, choice_TC: torch.Tensor, share_TC: torch.Tensor) -> torch.Tensor:
    if module._is_expert_parallel:
        raise EngineError("experts are spread over processes, which isn't supported")
    out_TCE = hidden_TE.new_zeros((*choice_TC.shape, hidden_TE.shape[-1]))
    for expert in choice_TC.unique().tolist():
        token, choice = torch.where(choice_TC == expert)
        out_TE = _expert(module, expert, hidden_TE[token]) * share_TC[token, choice, None]
        out_TCE[token, choice] = out_TE.to(out_TCE.dtype)  # some routers give shares in float32
    total_TE = out_TCE[:, 0]
    for rank in range(1, choice_TC.shape[1]):
        total_TE = total_TE + out_TCE[:, rank]
    return total_TE.to(hidden_TE.dtype)


def _expert(module: Any, expert: int, hidden_TE: torch.Tensor) -> torch.Tensor:
    first = "gate_up_proj" if module.has_gate else "up_proj"
    inner = _product(module, first, expert, hidden_TE)
    inner_TI = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)
    out_TE = _product(module, "down_proj", expert, inner_TI)
    if module.has_post_expert_norm:
        out_TE = module.post_expert_norm(out_TE)
    return out_TE


def _product(module: Any, name: str, expert: int, input: torch.Tensor) -> torch.Tensor:
    weight = getattr(module, name)[expert]
    bias = getattr(module, f"{name}_bias")[expert] if module.has_bias else None
    return F.linear(input, weight.t() if module.is_transposed else weight, bias)


def _stand_in(
    module: Any,
    hidden_TE: torch.Tensor,
    choice_TC: torch.Tensor,
    share_TC: torch.Tensor,
) -> torch.Tensor:
    """Something of the right shape, where there are no values to choose by."""
    del choice_TC, share_TC
    first = getattr(module, "gate_up_proj" if module.has_gate else "up_proj")
    inner = hidden_TE[:, :1] * first.new_empty((1, first.shape[1 if not module.is_transposed else 2]))
    gated = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)
    out_TE: torch.Tensor = hidden_TE * gated[:, :1]
    return out_TE


ExpertsInterface.register(EXPERTS, _compute)
ExpertsInterface.register(RECORDING_EXPERTS, _stand_in)
