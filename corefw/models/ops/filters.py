"""Filters over unnormalised weights: temperature, min_p, top-k, top-p, and the choice.

Shapes: R rows, V tokens. A weight is exp((logit - largest) / temperature) in float64, so the most likely token has 1
and a filtered one 0. Every reduction runs along one row in token order (``cumsum``, never ``sum``, which splits a lone
row over threads): a row's bits don't depend on the others.
"""

from __future__ import annotations

import torch

__all__ = ["choose", "drop_unlikely", "keep_top", "scaled_logits", "weights_of"]

# How many of the largest weights are looked at before all are sorted; real distributions seldom need more.
_CANDIDATES = (64, 1024)


def scaled_logits(logits_RV: torch.Tensor, temperature_R: torch.Tensor) -> torch.Tensor:
    """float64 logits at the temperature, the largest 0, of rows whose largest logit is finite."""
    logits = logits_RV.double()
    return logits.sub_(logits.amax(-1, keepdim=True)).div_(temperature_R.unsqueeze(-1))


def weights_of(scaled_RV: torch.Tensor) -> torch.Tensor:
    """Weights, in place."""
    return scaled_RV.exp_()


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
    unlimited_R = (top_k_R <= 0) | (top_k_R >= vocab_size)
    top_k_R = torch.where(unlimited_R, vocab_size, top_k_R)
    waiting = (~unlimited_R | (top_p_R < 1.0)).nonzero().squeeze(-1)
    for num_candidates in (*(size for size in _CANDIDATES if size < vocab_size), vocab_size):
        if not waiting.numel():
            break
        fits = (top_k_R[waiting] <= num_candidates) | unlimited_R[waiting]
        rows, waiting = waiting[fits], waiting[~fits]
        if rows.numel():
            kept, short = _keep_top_of_candidates(weights_RV[rows], top_k_R[rows], top_p_R[rows], num_candidates)
            weights_RV[rows] = kept
            waiting = torch.cat([waiting, rows[short]])
    return weights_RV


def _keep_top_of_candidates(
    weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, num_candidates: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Filter by the largest ``num_candidates`` weights. Also returns for which rows, left as they are, it's too few.

    The candidates' values in falling order are one sequence, however many there are and whichever of equal tokens
    they belong to: so the result doesn't depend on ``num_candidates``.
    """
    vocab_size = weights.shape[-1]
    falling = _falling(weights, num_candidates)
    mass = falling.cumsum(-1)
    total = mass.gather(-1, top_k.clamp(max=num_candidates).sub(1).unsqueeze(-1)).squeeze(-1)
    unlimited = (top_k >= vocab_size) & (num_candidates < vocab_size)
    if bool(unlimited.any()):
        total[unlimited] = weights[unlimited].cumsum(-1)[:, -1]
    # Where top_p is 1 the mass mustn't decide: rounding could cut the tail.
    inside = (mass - falling < (top_p * total).unsqueeze(-1)) | (top_p >= 1.0).unsqueeze(-1)
    num_kept = torch.minimum(inside.sum(-1), top_k)
    short = unlimited & (num_kept >= num_candidates)
    threshold = falling.gather(-1, num_kept.sub(1).unsqueeze(-1)).masked_fill_(short.unsqueeze(-1), 0.0)
    kept = weights.masked_fill(weights < threshold, 0.0)
    following = num_kept.clamp(max=num_candidates - 1).unsqueeze(-1)
    cut_among_equals = (falling.gather(-1, following) == threshold).squeeze(-1) | (num_kept == num_candidates)
    for row in (cut_among_equals & (threshold > 0.0).squeeze(-1)).nonzero().squeeze(-1).tolist():
        _drop_highest_ids(kept[row], threshold[row], int(num_kept[row]))
    return kept, short


def _falling(weights: torch.Tensor, num_candidates: int) -> torch.Tensor:
    if num_candidates == weights.shape[-1]:
        return weights.sort(-1, descending=True).values
    return weights.topk(num_candidates, sorted=True).values


def _drop_highest_ids(kept_V: torch.Tensor, threshold: torch.Tensor, num_kept: int) -> None:
    """Of the tokens at the threshold, drop those with the highest ids until ``num_kept`` are left."""
    excess = int((kept_V >= threshold).sum()) - num_kept
    if excess > 0:
        kept_V[(kept_V == threshold).nonzero().squeeze(-1)[-excess:]] = 0.0


def choose(weights_RV: torch.Tensor, uniform_R: torch.Tensor) -> torch.Tensor:
    """The inverse of the cumulative distribution, in token-id order, at a number in (0, 1). int64 [R]."""
    mass = weights_RV.cumsum(-1)
    target = uniform_R.unsqueeze(-1) * mass[:, -1:]
    return torch.searchsorted(mass, target, right=True).squeeze(-1)
