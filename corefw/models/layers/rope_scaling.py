"""The kinds of rotary scaling.

A kind is a function from its parameters and the number of positions to inverse frequencies, [R/2] or one row a
position [P, R/2], and a factor on the embedding; a new kind is one more entry in ``KINDS``. Everything is computed in
float32, as the models were trained.

Two kinds are defined over the length of the sequence, which grows while tokens are generated. Here a table row depends
on its position and on the start-up settings alone, so a token never depends on its batch, chunk or neighbours:

* ``dynamic``: position p is turned as the last position of a sequence of p + 1 tokens. Up to
  ``max_position_embeddings`` nothing is scaled; beyond, this is what a decoder that keeps its keys computes token by
  token.
* ``longrope``: the short factors where the engine's longest context fits the original one, else the long factors, at
  every position. Keys turned by one set can't be met by queries turned by the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from corefw.errors import ModelFormatError

__all__ = ["KINDS", "RopeParameters"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeParameters:
    """What a model's configuration says of its rotary embedding.

    Attributes:
        kind: a key of ``KINDS``.
        theta: base of the frequencies.
        rotary_size: rotated elements of a head, even.
        freq_factors: divide the inverse frequencies, one each; from files that carry scaling as a table.
        max_position: longest context that the configuration states; None where it states none.
        scaling: further parameters of the kind.
    """

    kind: str
    theta: float
    rotary_size: int
    freq_factors: tuple[float, ...] | None = None
    max_position: int | None = None
    scaling: Mapping[str, Any]

    def number(self, key: str) -> float:
        """A parameter that must be there.

        Raises:
            KeyError: it isn't.
        """
        return float(self.scaling[key])

    def original_length(self) -> float:
        """The context that the model was trained with before it was extended."""
        original = self.scaling.get("original_max_position_embeddings") or self.max_position
        if original is None:
            raise KeyError("original_max_position_embeddings")
        return float(original)

    def stretch(self) -> float:
        """``factor``, else the stated context over the original one."""
        factor = self.scaling.get("factor")
        if factor is not None:
            return float(factor)
        if self.max_position is None:
            raise KeyError("factor")
        return self.max_position / self.original_length()


def _exponents(rope: RopeParameters) -> torch.Tensor:
    return torch.arange(0, rope.rotary_size, 2, dtype=torch.int64).float() / rope.rotary_size


def _default(rope: RopeParameters, num_positions: int = 0) -> tuple[torch.Tensor, float]:
    del num_positions
    return 1.0 / (rope.theta ** _exponents(rope)), 1.0


def _linear(rope: RopeParameters, num_positions: int) -> tuple[torch.Tensor, float]:
    return _default(rope, num_positions)[0] / rope.number("factor"), 1.0


def _dynamic(rope: RopeParameters, num_positions: int) -> tuple[torch.Tensor, float]:
    """The base grows with the length beyond the stated context."""
    if rope.max_position is None:
        raise KeyError("max_position_embeddings")
    factor, size = rope.number("factor"), rope.rotary_size
    length = torch.arange(1, num_positions + 1).clamp_min(rope.max_position)[:, None]
    growth = factor * length / rope.max_position - (factor - 1)
    base = rope.theta * growth ** (size / (size - 2))
    inverse, _ = _default(rope)
    return torch.where(length > rope.max_position, 1.0 / (base ** _exponents(rope)), inverse), 1.0


def _llama3(rope: RopeParameters, num_positions: int) -> tuple[torch.Tensor, float]:
    """Long wavelengths are stretched by ``factor``, short ones kept, those between blended."""
    inverse, _ = _default(rope, num_positions)
    factor, low, high = (rope.number(key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original = rope.original_length()
    wavelength = 2 * math.pi / inverse
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * inverse / factor + smooth * inverse
    stretched = torch.where(wavelength > original / low, inverse / factor, inverse)
    between = (wavelength <= original / low) & (wavelength >= original / high)
    return torch.where(between, blended, stretched), 1.0


def _yarn(rope: RopeParameters, num_positions: int) -> tuple[torch.Tensor, float]:
    """Elements that turn often within the original context are kept, those that turn seldom are stretched."""
    inverse, _ = _default(rope, num_positions)
    factor = rope.stretch()
    low = _turning(rope, float(rope.scaling.get("beta_fast") or 32))
    high = _turning(rope, float(rope.scaling.get("beta_slow") or 1))
    if rope.scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_size - 1)
    width = high - low or 0.001  # a step, not a division by zero
    stretched = ((torch.arange(rope.rotary_size // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    slow = 1.0 / (factor * rope.theta ** _exponents(rope))
    return slow * stretched + inverse * (1 - stretched), _yarn_factor(rope, factor)


def _turning(rope: RopeParameters, turns: float) -> float:
    """Index of the frequency that makes so many turns within the original context."""
    return rope.rotary_size * math.log(rope.original_length() / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))


def _yarn_factor(rope: RopeParameters, factor: float) -> float:
    stated = rope.scaling.get("attention_factor")
    if stated is not None:
        return float(stated)
    mscale, mscale_all_dim = rope.scaling.get("mscale"), rope.scaling.get("mscale_all_dim")
    if mscale and mscale_all_dim:
        return _mscale(factor, mscale) / _mscale(factor, mscale_all_dim)
    return _mscale(factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _longrope(rope: RopeParameters, num_positions: int) -> tuple[torch.Tensor, float]:
    """Every frequency has its own stretch, one for the original context and one for longer ones."""
    original = rope.original_length()
    name = "long_factor" if num_positions > original else "short_factor"
    stretches = torch.tensor(rope.scaling[name], dtype=torch.float32)
    if stretches.shape != (rope.rotary_size // 2,):
        raise ModelFormatError(
            f"rotary scaling 'longrope': {name} has {stretches.numel()} entries, "
            f"a head of this model needs {rope.rotary_size // 2}"
        )
    return 1.0 / (stretches * rope.theta ** _exponents(rope)), _longrope_factor(rope, original)


def _longrope_factor(rope: RopeParameters, original: float) -> float:
    stated = rope.scaling.get("attention_factor")
    if stated is not None:
        return float(stated)
    factor = rope.stretch()
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))


KINDS: dict[str, Callable[[RopeParameters, int], tuple[torch.Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
