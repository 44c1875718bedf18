"""Filters over unnormalised weights: temperature, min_p, top-k, top-p, and the choice.

Shapes: R rows, V tokens. A weight is exp((logit - largest) / temperature) in float64, so the most likely token has 1 and a
filtered one 0. Every reduction runs along one row in token order (``cumsum``, never ``sum``, which splits a lone row
over threads): a row's bits don't depend on the others.
"""

from __future__ import annotations

import torch

__all__ = ["choose", "drop_unlikely", "keep_top", "weights_at_temperature"]

# Nucleus candidates looked at before all tokens are sorted; real distributions seldom need more.
_MAX_CANDIDATES = 512


def weights_at_temperature(logits_RV: torch.Tensor, temperature_R: torch.Tensor) -> torch.Tensor:
    """Weights of rows whose largest logit is finite."""
    logits = logits_RV.double()
    return logits.sub_(logits.amax(-1, keepdim=True)).div_(temperature_R.unsqueeze(-1)).exp_()


def drop_unlikely(weights_RV: torch.Tensor, min_p_R: torch.Tensor) -> torch.Tensor:
    """min_p: drop tokens less likely than this share of the most likely one, whose weight is 1."""
    return weights_RV.masked_fill_(weights_RV < min_p_R.unsqueeze(-1), 0.0)


def keep_top(weights_RV: torch.Tensor, top_k_R: torch.Tensor, top_p_R: torch.Tensor) -> torch.Tensor:
    """The k most likely tokens, and of these the smallest set with mass p. Among equals the lowest ids stay.

    Args:
        weights_RV: changed in place.
        top_k_R: int64, 0 or at least V keeps all.
        top_p_R: float64 in (0, 1].
    """
    vocab_size = weights_RV.shape[-1]
    limited_R = (top_k_R > 0) & (top_k_R < vocab_size)
    filtered_R = limited_R | (top_p_R < 1.0)
    if not bool(filtered_R.any()):
        return weights_RV
    top_k_R = torch.where(limited_R, top_k_R, vocab_size)
    few_R = filtered_R & (~limited_R | (top_k_R <= _MAX_CANDIDATES))
    rest_R = filtered_R & ~few_R
    if bool(few_R.any()):
        rows = few_R.nonzero().squeeze(-1)
        short = _keep_top_of_rows(weights_RV, rows, top_k_R, top_p_R, min(_MAX_CANDIDATES, vocab_size))
        rest_R[short] = True
    if bool(rest_R.any()):
        rows = rest_R.nonzero().squeeze(-1)
        _keep_top_of_rows(weights_RV, rows, top_k_R, top_p_R, vocab_size)
    return weights_RV


def _keep_top_of_rows(
    weights_RV: torch.Tensor, rows: torch.Tensor, top_k_R: torch.Tensor, top_p_R: torch.Tensor, num_candidates: int
) -> torch.Tensor:
    """Filter those rows by their largest ``num_candidates`` weights. Returns the rows for which that was too few."""
    weights, top_k, top_p = weights_RV[rows], top_k_R[rows], top_p_R[rows]
    vocab_size = weights.shape[-1]
    falling = _falling(weights, num_candidates)
    mass = falling.cumsum(-1)
    unlimited = top_k >= vocab_size
    total = mass.gather(-1, top_k.clamp(max=num_candidates).sub(1).unsqueeze(-1)).squeeze(-1)
    if num_candidates < vocab_size and bool(unlimited.any()):
        total[unlimited] = weights[unlimited].cumsum(-1)[:, -1]
    mass_before = mass - falling
    # Where top_p is 1 the mass mustn't decide: rounding could cut the tail.
    inside = (mass_before < (top_p * total).unsqueeze(-1)) | (top_p >= 1.0).unsqueeze(-1)
    num_kept = torch.minimum(inside.sum(-1), top_k)
    short = (num_kept >= num_candidates) & unlimited & (num_candidates < vocab_size)
    weights_RV[rows] = torch.where(short.unsqueeze(-1), weights, _keep_largest(weights, falling, num_kept))
    return rows[short]


def _falling(weights: torch.Tensor, num_candidates: int) -> torch.Tensor:
    """The largest values, in falling order; equal values can't be told apart, so the result is unique."""
    if num_candidates == weights.shape[-1]:
        return weights.sort(-1, descending=True).values
    return weights.topk(num_candidates, sorted=True).values


def _keep_largest(weights: torch.Tensor, falling: torch.Tensor, num_kept: torch.Tensor) -> torch.Tensor:
    """Zero all but the ``num_kept`` largest of each row; among equals the lowest ids stay."""
    threshold = falling.gather(-1, num_kept.sub(1).unsqueeze(-1))
    kept = weights >= threshold
    excess = kept.sum(-1) - num_kept
    for row in excess.nonzero().squeeze(-1).tolist():
        tied = (weights[row] == threshold[row]).nonzero().squeeze(-1)
        kept[row, tied[tied.numel() - int(excess[row]) :]] = False
    return weights * kept


def choose(weights_RV: torch.Tensor, uniform_R: torch.Tensor) -> torch.Tensor:
    """The inverse of the cumulative distribution, in token-id order, at a number in (0, 1). int64 [R]."""
    mass = weights_RV.cumsum(-1)
    target = uniform_R.unsqueeze(-1) * mass[:, -1:]
    return torch.searchsorted(mass, target, right=True).squeeze(-1)
