"""From logits to one token a row. Holds no request's state: what it must know arrives as metadata.

Shapes: R rows that get a token, V rows of the model's vocabulary (which may be padded beyond the tokenizer).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from corefw.messages.sampling import GREEDY_EPS
from corefw.models.ops import definitions, filters
from corefw.models.ops.definitions import MAX_RANDOM_ROWS
from corefw.runtime.sampling import constraints, logprobs
from corefw.runtime.sampling.logprobs import SampledLogprobs
from corefw.runtime.sampling.metadata import BoundProcessor, SamplingMetadata
from corefw.runtime.sampling.processors import ProcessorError, apply_processor
from corefw.runtime.sampling.randomness import TOKEN_DRAW, uniform

__all__ = ["Sampler", "SamplerOutput"]


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """One step's choice.

    Attributes:
        token_ids: int64 [R]; meaningless where ``failed``.
        failed: bool [R]: the row's logits hold NaN or leave nothing to choose, or a logits processor failed.
        logprobs: of the rows that asked for a number of them.
        full_logprobs: of the rows that asked for the whole vocabulary.
        errors: by row, what a logits processor said.
        emptied: bool [R], where any row has constraints: those of the row leave nothing to choose.
    """

    token_ids: torch.Tensor
    failed: torch.Tensor
    logprobs: SampledLogprobs | None = None
    full_logprobs: SampledLogprobs | None = None
    errors: dict[int, str] = field(default_factory=dict)
    emptied: torch.Tensor | None = None


class Sampler:
    """The sampling chain.

    Args:
        vocab_size: size of the tokenizer; ids from there on are never sampled.
        logprobs_mode: of which distribution log-probabilities are told: ``raw_logprobs``, ``raw_logits`` (before
            anything changed the logits), ``processed_logprobs``, ``processed_logits`` (what the token was chosen from).
        draw: the kernel of the op ``drawn``, for rows that nothing but temperature and filters is to change.
    """

    def __init__(
        self, vocab_size: int, logprobs_mode: str = "raw_logprobs", draw: Callable[..., Any] = definitions.drawn
    ) -> None:
        self._vocab_size = vocab_size
        self._draw = draw
        self._is_raw = logprobs_mode.startswith("raw")
        self._read: Callable[[torch.Tensor], torch.Tensor] = (
            logprobs.log_softmax if logprobs_mode.endswith("logprobs") else _copied
        )

    def read_logprobs(self, logits_NV: torch.Tensor) -> torch.Tensor:
        """float32 [N, V] log-probabilities or logits, as the mode says."""
        return self._read(logits_NV)

    def __call__(self, logits_RV: torch.Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """Choose a token a row. The logits may be overwritten.

        The order of the stages is part of what parameters mean. The grammar bitmask, which isn't built yet, has its
        place before the allowed ids.
        """
        if metadata.is_plain_greedy:  # the largest of a row is the same in float32, which would be a copy of all logits
            return SamplerOutput(*_greedy(logits_RV[:, : self._vocab_size]))
        if metadata.is_plain:
            return self._drawn(logits_RV, metadata)
        wanted = torch.from_numpy(metadata.logprob_rows).to(logits_RV.device)
        told = self._read(logits_RV[wanted]) if wanted.numel() and self._is_raw else None
        logits = logits_RV.float()
        logits = logits[:, : self._vocab_size]
        constraints.allow(logits, metadata)
        constraints.ban(logits, metadata.banned)
        constraints.add_bias(logits, metadata.bias, metadata.bias_values)
        errors = _process(logits, [p for p in metadata.processors if p.changes_argmax])
        constraints.penalise(logits, metadata.penalties)
        is_constrained = bool(metadata.allowed) or len(metadata.banned) > 0
        emptied = logits.isneginf().all(dim=-1) if is_constrained else None
        token_ids, failed = _greedy(logits)
        if wanted.numel() and told is None:
            told = logits[wanted]
        processed = None if self._is_raw else told
        _choose_randomly(logits, metadata, token_ids, failed, errors, processed)
        for row in errors:
            failed[row] = True
        if told is None:
            return SamplerOutput(token_ids, failed, errors=errors, emptied=emptied)
        if not self._is_raw:
            told = self._read(told)
        chosen = SamplerOutput(token_ids, failed, errors=errors, emptied=emptied)
        return self._with_logprobs(chosen, metadata, told)

    def _drawn(self, logits_RV: torch.Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        columns = (
            np.where(metadata.temperature < GREEDY_EPS, 0.0, metadata.temperature),
            metadata.top_k,
            metadata.top_p,
            metadata.min_p,
            uniform(metadata.seeds, metadata.positions, TOKEN_DRAW),
        )
        placed = [torch.from_numpy(column).to(logits_RV.device) for column in columns]
        largest, token_ids = self._draw(logits_RV, self._vocab_size, *placed)
        return SamplerOutput(token_ids, ~largest.isfinite())

    def _with_logprobs(self, output: SamplerOutput, metadata: SamplingMetadata, told: torch.Tensor) -> SamplerOutput:
        """Rows that want all are gathered apart, so that the others don't pay for them."""
        rows, full = metadata.logprob_rows, metadata.full_logprob_rows
        is_full = np.isin(rows, full)

        def gather(which: npt.NDArray[np.bool_], count: int) -> SampledLogprobs | None:
            if not which.any():
                return None
            index, chosen = (torch.from_numpy(part).to(told.device) for part in (rows[which], np.flatnonzero(which)))
            found = logprobs.gather(told[chosen], index, output.token_ids, count, self._vocab_size)
            output.failed[index] |= found.logprobs[:, 0].isnan()  # a NaN beyond the tokenizer spoils the sum
            return found

        return SamplerOutput(
            output.token_ids,
            output.failed,
            gather(~is_full, int(metadata.num_logprobs.max())),
            gather(is_full, self._vocab_size),
            output.errors,
            output.emptied,
        )


def _copied(logits: torch.Tensor) -> torch.Tensor:
    return logits.to(torch.float32, copy=True)


def _process(logits: torch.Tensor, processors: list[BoundProcessor]) -> dict[int, str]:
    """Run logits processors on their rows. By row, what the first one that failed said; no other one runs there."""
    errors: dict[int, str] = {}
    for processor in processors:
        if processor.row in errors:
            continue
        try:
            apply_processor(processor, logits[processor.row])
        except ProcessorError as error:
            errors[processor.row] = str(error)
            logits[processor.row] = 0.0
    return errors


def _greedy(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The most likely token (the lowest id among equals), and which rows have none: their maximum isn't finite."""
    largest, token_ids = logits.max(dim=-1)
    return token_ids, ~largest.isfinite()


def _choose_randomly(
    logits: torch.Tensor,
    metadata: SamplingMetadata,
    token_ids: torch.Tensor,
    failed: torch.Tensor,
    errors: dict[int, str],
    processed: torch.Tensor | None,
) -> None:
    """Replace the tokens of rows that aren't greedy, group by group; note what they were chosen from, if asked for."""
    random_rows = metadata.random_rows
    for start in range(0, len(random_rows), MAX_RANDOM_ROWS):
        rows = random_rows[start : start + MAX_RANDOM_ROWS]
        index = torch.from_numpy(rows).to(logits.device)
        finite = logits[index].masked_fill_(failed[index, None], 0.0)
        weights = _weights(finite, metadata, rows, errors)
        numbers = uniform(metadata.seeds[rows], metadata.positions[rows], TOKEN_DRAW)
        token_ids[index] = filters.choose(weights, torch.from_numpy(numbers).to(logits.device))
        if processed is not None:
            asked = np.isin(rows, metadata.logprob_rows)
            temperature = torch.from_numpy(metadata.temperature[rows]).to(logits.device)
            largest = finite.amax(-1).double().div_(temperature).unsqueeze(-1)
            kept = weights.log_().add_(largest).float()  # what filters dropped is -inf
            processed[torch.from_numpy(np.isin(metadata.logprob_rows, rows))] = kept[torch.from_numpy(asked)]


def _weights(
    logits: torch.Tensor, metadata: SamplingMetadata, rows: npt.NDArray[np.intp], errors: dict[int, str]
) -> torch.Tensor:
    """Temperature → processors that keep the arg-max, min_p → top-k and top-p, for the given rows alone."""

    def column(values: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(values).to(logits.device)

    scaled = filters.scaled_logits(logits, column(metadata.temperature[rows]))
    _process_scaled(scaled, metadata, rows, errors)
    weights = filters.weights_of(scaled)
    if (metadata.min_p[rows] > 0).any():
        weights = filters.drop_unlikely(weights, column(metadata.min_p[rows]))
    return filters.keep_top(weights, column(metadata.top_k[rows]), column(metadata.top_p[rows]))


def _process_scaled(
    scaled: torch.Tensor, metadata: SamplingMetadata, rows: npt.NDArray[np.intp], errors: dict[int, str]
) -> None:
    places = {int(row): place for place, row in enumerate(rows)}
    late = [p for p in metadata.processors if not p.changes_argmax and p.row in places and p.row not in errors]
    if not late:
        return
    moved = [BoundProcessor(p.name, places[p.row], False, p.apply) for p in late]
    for place, error in _process(scaled, moved).items():
        errors[int(rows[place])] = error
    for place in {p.row for p in moved}:
        largest = scaled[place].max()
        if not bool(largest.isfinite()):
            errors.setdefault(int(rows[place]), f"logits processor {moved[0].name} left nothing to choose from")
            scaled[place] = 0.0
        else:
            scaled[place] -= largest  # weights are relative to the most likely token
