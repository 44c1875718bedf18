"""From logits to one token a row. Holds no request's state: what it must know arrives as metadata.

Shapes: R rows that get a token, V rows of the model's vocabulary (which may be padded beyond the tokenizer).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from corefw.runtime.sampling import filters, logprobs
from corefw.runtime.sampling.metadata import SamplingMetadata
from corefw.runtime.sampling.randomness import TOKEN_DRAW, uniform

__all__ = ["MAX_RANDOM_ROWS", "Sampler", "SamplerOutput"]

# Random rows are worked on in groups of this many, which bounds the memory of their float64 copies.
MAX_RANDOM_ROWS = 32


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """One step's choice.

    Attributes:
        token_ids: int64 [R]; meaningless where ``failed``.
        failed: bool [R]: the row's logits hold NaN or leave nothing to choose.
        logprobs: of the rows that asked.
    """

    token_ids: torch.Tensor
    failed: torch.Tensor
    logprobs: logprobs.SampledLogprobs | None


class Sampler:
    """The sampling chain.

    Args:
        vocab_size: size of the tokenizer; ids from there on are never sampled.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def __call__(self, logits_RV: torch.Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """Choose a token a row. The logits may be overwritten.

        The order of the stages is part of what parameters mean. Stages that aren't built yet have their place:
        grammar bitmask, allowed ids and bad words before ``min_tokens``, penalties after it.
        """
        logprob_rows = torch.from_numpy(metadata.logprob_rows).to(logits_RV.device)
        raw_logprobs = logprobs.snapshot(logits_RV, logprob_rows) if logprob_rows.numel() else None
        logits = logits_RV.float()
        logits = logits[:, : self._vocab_size]
        _ban(logits, metadata)
        token_ids, failed = _greedy(logits)
        random_rows = metadata.random_rows
        for start in range(0, len(random_rows), MAX_RANDOM_ROWS):
            rows = random_rows[start : start + MAX_RANDOM_ROWS]
            index = torch.from_numpy(rows).to(logits.device)
            token_ids[index] = _random(logits[index].masked_fill_(failed[index, None], 0.0), metadata, rows)
        if raw_logprobs is None:
            return SamplerOutput(token_ids, failed, None)
        count = int(metadata.num_logprobs.max())
        sampled = logprobs.gather(raw_logprobs, logprob_rows, token_ids, count, self._vocab_size)
        failed[logprob_rows] |= sampled.logprobs[:, 0].isnan()  # a NaN beyond the tokenizer spoils the sum
        return SamplerOutput(token_ids, failed, sampled)


def _ban(logits: torch.Tensor, metadata: SamplingMetadata) -> None:
    """min_tokens: what would end the output too early."""
    known = metadata.banned_ids < logits.shape[-1]
    if known.any():
        rows, ids = (torch.from_numpy(column[known]) for column in (metadata.banned_rows, metadata.banned_ids))
        logits[rows.to(logits.device), ids.to(logits.device)] = -torch.inf


def _greedy(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The most likely token (the lowest id among equals), and which rows have none: their maximum isn't finite."""
    largest, token_ids = logits.max(dim=-1)
    return token_ids, ~largest.isfinite()


def _random(logits: torch.Tensor, metadata: SamplingMetadata, rows: npt.NDArray[np.intp]) -> torch.Tensor:
    """Temperature → min_p → top-k and top-p → choice, for the given rows alone."""

    def column(values: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(values).to(logits.device)

    weights = filters.weights_at_temperature(logits, column(metadata.temperature[rows]))
    if (metadata.min_p[rows] > 0).any():
        weights = filters.drop_unlikely(weights, column(metadata.min_p[rows]))
    weights = filters.keep_top(weights, column(metadata.top_k[rows]), column(metadata.top_p[rows]))
    numbers = uniform(metadata.seeds[rows], metadata.positions[rows], TOKEN_DRAW)
    return filters.choose(weights, column(numbers))
