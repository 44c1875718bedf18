"""Stages that change single logits. Every one is elementwise, so a row's bits don't depend on the others.

Shapes: R rows, V tokens. Ids from V on are ignored.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from corefw.runtime.sampling.metadata import Coordinates, Penalties, SamplingMetadata

__all__ = ["add_bias", "allow", "ban", "penalise"]


def allow(logits_RV: torch.Tensor, metadata: SamplingMetadata) -> None:
    """Allowed ids: all others can't be sampled."""
    for row, ids in metadata.allowed:
        kept = torch.from_numpy(ids[ids < logits_RV.shape[-1]]).to(logits_RV.device)
        values = logits_RV[row, kept]
        logits_RV[row] = -torch.inf
        logits_RV[row, kept] = values


def ban(logits_RV: torch.Tensor, banned: Coordinates) -> None:
    """Bad words, and what would end the output before ``min_tokens``."""
    if len(banned):
        rows, ids, _ = _known(banned, logits_RV)
        logits_RV[rows, ids] = -torch.inf


def add_bias(logits_RV: torch.Tensor, bias: Coordinates, values: npt.NDArray[np.float32]) -> None:
    """Logit biases."""
    if len(bias):
        rows, ids, known = _known(bias, logits_RV)
        logits_RV[rows, ids] += torch.from_numpy(values[known]).to(logits_RV.device)


def penalise(logits_RV: torch.Tensor, penalties: Penalties | None) -> None:
    """Repetition, then frequency, then presence."""
    if penalties is None or not len(penalties.at):
        return
    rows, ids, known = _known(penalties.at, logits_RV)

    def column(values: npt.NDArray[np.float32]) -> torch.Tensor:
        return torch.from_numpy(values[known]).to(logits_RV.device)

    repetition, counts = column(penalties.repetition), column(penalties.counts)
    values = logits_RV[rows, ids]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= column(penalties.frequency) * counts
    values -= column(penalties.presence) * (counts > 0)
    logits_RV[rows, ids] = values


def _known(at: Coordinates, logits_RV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, npt.NDArray[np.bool_]]:
    known = at.ids < logits_RV.shape[-1]
    rows, ids = (torch.from_numpy(column[known]).to(logits_RV.device) for column in (at.rows, at.ids))
    return rows, ids, known
