"""Log-probabilities of tokens, of the distribution that ``--logprobs-mode`` names."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["SampledLogprobs", "gather", "log_softmax", "token_logprobs"]


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


def log_softmax(logits_NV: torch.Tensor) -> torch.Tensor:
    """float32 [N, V]; the logits are left as they are."""
    return torch.log_softmax(logits_NV.float(), dim=-1)


def gather(
    logprobs_NV: torch.Tensor, rows: torch.Tensor, token_ids_R: torch.Tensor, num_logprobs: int, vocab_size: int
) -> SampledLogprobs:
    """The sampled token's and the ``num_logprobs`` most likely ones', of ids below ``vocab_size``."""
    return SampledLogprobs(rows, *token_logprobs(logprobs_NV[:, :vocab_size], token_ids_R[rows], num_logprobs))


def token_logprobs(
    logprobs_NV: torch.Tensor, token_ids_N: torch.Tensor, num_logprobs: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids [N, 1 + k], log-probabilities [N, 1 + k] and the tokens' ranks [N]."""
    chosen = token_ids_N.unsqueeze(-1)
    chosen_logprob = logprobs_NV.gather(-1, chosen)
    ranks = (logprobs_NV > chosen_logprob).sum(-1) + 1
    top = _most_likely(logprobs_NV, min(num_logprobs, logprobs_NV.shape[-1]))
    token_ids = torch.cat([chosen, top], dim=-1)
    return token_ids, logprobs_NV.gather(-1, token_ids), ranks


def _most_likely(logprobs: torch.Tensor, count: int) -> torch.Tensor:
    """Ids in falling order of (value, -id): one order, whatever ``count`` the other rows wish for."""
    if count == 0:
        return torch.empty((logprobs.shape[0], 0), dtype=torch.int64, device=logprobs.device)
    bits = (logprobs + 0.0).view(torch.int32)  # + 0.0 turns -0.0 into 0.0
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()  # integers that sort as the floats do
    ids = torch.arange(logprobs.shape[-1], device=logprobs.device)
    return ((ordered << 32) - ids).topk(count, sorted=True).indices
