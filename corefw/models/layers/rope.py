"""Rotary position embedding and its context extensions.

A kind of scaling is a function from its parameters to inverse frequencies and a factor on the embedding; a new kind is
one more entry in ``_KINDS``. Everything is computed in float32, as the models were trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from corefw.errors import ModelFormatError
from corefw.models.layers.context import BuildContext

__all__ = ["RopeParameters", "RotaryEmbedding", "rope_parameters"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeParameters:
    """What a model's configuration says of its rotary embedding.

    Attributes:
        kind: ``default``, ``linear``, ``llama3`` …
        theta: base of the frequencies.
        rotary_size: rotated elements of a head, even.
        freq_factors: divide the inverse frequencies, one each; from files that carry scaling as a table.
        scaling: further parameters of the kind.
    """

    kind: str
    theta: float
    rotary_size: int
    freq_factors: tuple[float, ...] | None
    scaling: Mapping[str, Any]


def rope_parameters(hf_config: Mapping[str, Any], head_size: int) -> RopeParameters:
    """Read both spellings: ``rope_parameters``, or ``rope_theta`` with ``rope_scaling``.

    Raises:
        ModelFormatError: the kind is unknown.
    """
    scaling: Mapping[str, Any] = hf_config.get("rope_parameters") or hf_config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in _KINDS:
        raise ModelFormatError(
            f"rotary scaling {str(kind)[:40]!r} is not supported; known: {', '.join(sorted(_KINDS))}"
        )
    share = scaling.get("partial_rotary_factor", hf_config.get("partial_rotary_factor", 1.0))
    factors = hf_config.get("rope_freq_factors")
    return RopeParameters(
        kind=kind,
        theta=float(scaling.get("rope_theta", hf_config.get("rope_theta", 10_000.0))),
        rotary_size=int(head_size * share),
        freq_factors=None if factors is None else tuple(float(factor) for factor in factors),
        scaling=scaling,
    )


def _default(rope: RopeParameters) -> tuple[torch.Tensor, float]:
    exponent = torch.arange(0, rope.rotary_size, 2, dtype=torch.int64).float() / rope.rotary_size
    return 1.0 / (rope.theta**exponent), 1.0


def _linear(rope: RopeParameters) -> tuple[torch.Tensor, float]:
    inverse, _ = _default(rope)
    return inverse / float(rope.scaling["factor"]), 1.0


def _llama3(rope: RopeParameters) -> tuple[torch.Tensor, float]:
    """Long wavelengths are stretched by ``factor``, short ones kept, those between blended."""
    inverse, _ = _default(rope)
    factor, low, high = (float(rope.scaling[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original = float(rope.scaling["original_max_position_embeddings"])
    wavelength = 2 * math.pi / inverse
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * inverse / factor + smooth * inverse
    stretched = torch.where(wavelength > original / low, inverse / factor, inverse)
    between = (wavelength <= original / low) & (wavelength >= original / high)
    return torch.where(between, blended, stretched), 1.0


_KINDS: dict[str, Callable[[RopeParameters], tuple[torch.Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
}


class RotaryEmbedding(nn.Module):
    """Turns queries and keys by their positions; one table serves every layer.

    Raises:
        ModelFormatError: a parameter of the scaling is missing, or the frequency factors don't fit.
    """

    cos_sin: torch.Tensor

    def __init__(self, rope: RopeParameters, head_size: int, build: BuildContext) -> None:
        super().__init__()
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
        inverse, factor = _KINDS[rope.kind](rope)
    except KeyError as error:
        raise ModelFormatError(f"rotary scaling {rope.kind!r} needs {error.args[0]!r} in the configuration") from None
    if rope.freq_factors is not None:
        if len(rope.freq_factors) != inverse.numel():
            raise ModelFormatError(
                f"rope_freq_factors has {len(rope.freq_factors)} entries, a head of this model needs {inverse.numel()}"
            )
        inverse = inverse / torch.tensor(rope.freq_factors)
    angle = torch.arange(num_positions, dtype=torch.float32)[:, None] * inverse
    return torch.cat((angle.cos(), angle.sin()), dim=-1) * factor
