"""Rotary position embedding: its parameters from a configuration, and the layer that turns heads by a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from corefw.errors import ModelFormatError
from corefw.models.layers.context import BuildContext
from corefw.models.layers.rope_scaling import KINDS, RopeParameters

__all__ = ["RopeParameters", "RotaryEmbedding", "rope_parameters"]

_ORIGINAL = "original_max_position_embeddings"


def rope_parameters(hf_config: Mapping[str, Any], head_size: int) -> RopeParameters:
    """Read both spellings: ``rope_parameters``, or ``rope_theta`` with ``rope_scaling``.

    Raises:
        ModelFormatError: the kind is unknown.
    """
    scaling: dict[str, Any] = dict(hf_config.get("rope_parameters") or hf_config.get("rope_scaling") or {})
    if hf_config.get(_ORIGINAL) is not None:  # beside the scaling, it wins
        scaling[_ORIGINAL] = hf_config[_ORIGINAL]
    share = scaling.get("partial_rotary_factor", hf_config.get("partial_rotary_factor", 1.0))
    factors = hf_config.get("rope_freq_factors")
    return RopeParameters(
        kind=_kind(scaling),
        theta=float(scaling.get("rope_theta", hf_config.get("rope_theta", 10_000.0))),
        rotary_size=int(head_size * share),
        freq_factors=None if factors is None else tuple(float(factor) for factor in factors),
        max_position=hf_config.get("max_position_embeddings"),
        scaling=scaling,
    )


def _kind(scaling: Mapping[str, Any]) -> str:
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    if "long_factor" in scaling:  # older configurations call it "su" or "yarn"
        return "longrope"
    if kind not in KINDS:
        raise ModelFormatError(f"rotary scaling {kind[:40]!r} is not supported; known: {', '.join(sorted(KINDS))}")
    return kind


class RotaryEmbedding(nn.Module):
    """Turns queries and keys by their positions; one table serves every layer that has the same parameters.

    Attributes:
        rope: the parameters.

    Raises:
        ModelFormatError: a parameter of the scaling is missing, or the frequency factors don't fit.
    """

    cos_sin: torch.Tensor

    def __init__(self, rope: RopeParameters, head_size: int, build: BuildContext) -> None:
        super().__init__()
        self.rope = rope
        self._head_size = head_size
        self.register_buffer("cos_sin", _table(rope, build.max_model_len).to(build.device), persistent=False)
        self._rotate = build.binder.bind("rotary_embedding", head_size=head_size, rotary_size=rope.rotary_size)

    def forward(
        self, positions_T: torch.Tensor, query_TX: torch.Tensor, key_TY: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Heads folded into the last dimension; new tensors of the same shapes."""
        query, key = self._rotate(query_TX, key_TY, positions_T, self.cos_sin, self._head_size)
        return query, key


def _table(rope: RopeParameters, num_positions: int) -> torch.Tensor:
    """[P, R]: cosines, then sines."""
    try:
        inverse, factor = KINDS[rope.kind](rope, num_positions)
    except KeyError as error:
        raise ModelFormatError(f"rotary scaling {rope.kind!r} needs {error.args[0]!r} in the configuration") from None
    if rope.freq_factors is not None:
        if len(rope.freq_factors) != inverse.shape[-1]:
            raise ModelFormatError(
                f"rope_freq_factors has {len(rope.freq_factors)} entries, "
                f"a head of this model needs {inverse.shape[-1]}"
            )
        inverse = inverse / torch.tensor(rope.freq_factors)
    angle = torch.arange(num_positions, dtype=torch.float32)[:, None] * inverse
    return torch.cat((angle.cos(), angle.sin()), dim=-1) * factor
