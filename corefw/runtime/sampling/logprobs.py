"""Log-probabilities of the unprocessed distribution."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["SampledLogprobs", "gather", "snapshot"]


@dataclass(frozen=True, slots=True)
class SampledLogprobs:
    """Of the rows that asked. k is their largest wish.

    Attributes:
        rows: int64 [N], rows of the step.
        token_ids: int64 [N, 1 + k], the sampled token and then the most likely ones; among equals the lowest id first.
        logprobs: float32 [N, 1 + k].
        ranks: int64 [N], 1 is the most likely.
    """

    rows: torch.Tensor
    token_ids: torch.Tensor
    logprobs: torch.Tensor
    ranks: torch.Tensor


def snapshot(logits_RV: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """float32 [N, V] log-probabilities, before anything changes the logits."""
    return torch.log_softmax(logits_RV[rows].float(), dim=-1)


def gather(
    logprobs_NV: torch.Tensor, rows: torch.Tensor, token_ids_R: torch.Tensor, num_logprobs: int, vocab_size: int
) -> SampledLogprobs:
    """The sampled token's and the ``num_logprobs`` most likely ones', of ids below ``vocab_size``."""
    chosen = token_ids_R[rows].unsqueeze(-1)
    logprobs = logprobs_NV[:, :vocab_size]
    chosen_logprob = logprobs.gather(-1, chosen)
    ranks = (logprobs > chosen_logprob).sum(-1) + 1
    top = _most_likely(logprobs, min(num_logprobs, vocab_size))
    token_ids = torch.cat([chosen, top], dim=-1)
    return SampledLogprobs(rows, token_ids, logprobs.gather(-1, token_ids), ranks)


def _most_likely(logprobs: torch.Tensor, count: int) -> torch.Tensor:
    """Ids in falling order of (value, -id): one order, whatever ``count`` the other rows wish for."""
    if count == 0:
        return torch.empty((logprobs.shape[0], 0), dtype=torch.int64, device=logprobs.device)
    bits = (logprobs + 0.0).view(torch.int32)  # + 0.0 turns -0.0 into 0.0
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()  # integers that sort as the floats do
    ids = torch.arange(logprobs.shape[-1], device=logprobs.device)
    return ((ordered << 32) - ids).topk(count, sorted=True).indices
