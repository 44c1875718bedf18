"""The batch's sampling parameters as columns, one value a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from corefw.errors import EngineError
from corefw.messages.sampling import GREEDY_EPS, SamplingParams
from corefw.messages.scheduling import NewRequest
from corefw.runtime.model_runner.ragged_rows import RaggedRows
from corefw.runtime.sampling.bad_words import BadWords
from corefw.runtime.sampling.metadata import NO_LOGPROBS, Coordinates, Penalties, SamplingMetadata, no_coordinates
from corefw.runtime.sampling.token_counts import TokenCounts

__all__ = ["SamplingColumns"]

_Ids = npt.NDArray[np.int64]
_NO_IDS: _Ids = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class _Rare:
    """What few requests ask for.

    Attributes:
        end_ids: tokens that ``min_tokens`` forbids early.
        allowed: ids, or None for all.
        bias_ids, bias_values: of equal length.
        bad_words: None without any.
        counts: for the penalties; None where they are off.
    """

    end_ids: _Ids = field(default_factory=lambda: _NO_IDS)
    allowed: _Ids | None = None
    bias_ids: _Ids = field(default_factory=lambda: _NO_IDS)
    bias_values: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    bad_words: BadWords | None = None
    counts: TokenCounts | None = None

    @property
    def is_used(self) -> bool:
        """Whether there is anything beside ``min_tokens``."""
        return bool(len(self.bias_ids)) or any(part is not None for part in (self.allowed, self.bad_words, self.counts))


class _Placed(NamedTuple):
    """A row with something rare: its place among the step's rows, and its row of the batch."""

    place: int
    rare: _Rare
    row: int


class SamplingColumns:
    """Filled when a request enters; a step gathers the rows it samples."""

    def __init__(self, num_rows: int) -> None:
        self._temperature = np.zeros(num_rows, dtype=np.float64)
        self._top_p = np.ones(num_rows, dtype=np.float64)
        self._top_k = np.zeros(num_rows, dtype=np.int64)
        self._min_p = np.zeros(num_rows, dtype=np.float64)
        self._seed = np.zeros(num_rows, dtype=np.int64)
        self._num_logprobs = np.full(num_rows, NO_LOGPROBS, dtype=np.int64)
        self._min_tokens = np.zeros(num_rows, dtype=np.int64)
        self._repetition = np.ones(num_rows, dtype=np.float32)
        self._presence = np.zeros(num_rows, dtype=np.float32)
        self._frequency = np.zeros(num_rows, dtype=np.float32)
        self._is_rare = np.zeros(num_rows, dtype=np.bool_)
        self._is_greedy = np.zeros(num_rows, dtype=np.bool_)
        self._rare = [_Rare() for _ in range(num_rows)]

    def set(self, row: int, request: NewRequest) -> None:
        """Take over a request's parameters."""
        params = request.params
        if params.seed is None:
            raise EngineError(f"request {request.request_id} came without a seed; the front end sets one")
        self._temperature[row] = params.temperature
        self._top_p[row] = params.top_p
        self._top_k[row] = params.top_k
        self._min_p[row] = params.min_p
        self._seed[row] = params.seed
        self._num_logprobs[row] = NO_LOGPROBS if params.logprobs is None else params.logprobs
        self._min_tokens[row] = params.min_tokens
        self._repetition[row] = params.repetition_penalty
        self._presence[row] = params.presence_penalty
        self._frequency[row] = params.frequency_penalty
        # With ignore_eos an end token ends nothing, so it may be sampled at any time.
        eos_ids = () if params.ignore_eos else request.eos_ids
        embedded = [slice(span.offset, span.stop) for span in request.prompt_embeds]
        self._rare[row] = _rare(params, (*eos_ids, *params.stop_token_ids), embedded)
        self._is_rare[row] = self._rare[row].is_used
        wants_more = params.temperature >= GREEDY_EPS or params.logprobs is not None or params.min_tokens > 0
        self._is_greedy[row] = not (wants_more or self._rare[row].is_used)

    def move(self, source: int, target: int) -> None:
        """Put one row's values in the place of another's."""
        for column in (
            self._temperature,
            self._top_p,
            self._top_k,
            self._min_p,
            self._seed,
            self._num_logprobs,
            self._min_tokens,
            self._repetition,
            self._presence,
            self._frequency,
            self._is_rare,
            self._is_greedy,
        ):
            column[target] = column[source]
        self._rare[target], self._rare[source] = self._rare[source], _Rare()

    def are_greedy(self, rows: npt.NDArray[np.intp]) -> bool:
        """Whether each of these rows wants its most likely token, whatever its output is, and nothing else."""
        return bool(self._is_greedy[rows].all())

    def gather(
        self, rows: npt.NDArray[np.intp], tokens: RaggedRows, num_prompt: npt.NDArray[np.int64]
    ) -> SamplingMetadata:
        """What the sampler needs for some rows.

        Args:
            rows: of the batch.
            tokens: prompt and outputs, by row.
            num_prompt: prompt tokens, by row.
        """
        num_outputs = tokens.lengths[rows] - num_prompt[rows]
        rare = [
            _Placed(int(place), self._rare[rows[place]], int(rows[place]))
            for place in np.flatnonzero(self._is_rare[rows])
        ]
        bias, bias_values = _bias(rare)
        return SamplingMetadata(
            temperature=self._temperature[rows],
            top_p=self._top_p[rows],
            top_k=self._top_k[rows],
            min_p=self._min_p[rows],
            seeds=self._seed[rows],
            positions=num_outputs,
            num_logprobs=self._num_logprobs[rows],
            allowed=tuple((one.place, one.rare.allowed) for one in rare if one.rare.allowed is not None),
            banned=self._banned(rows, num_outputs, rare, tokens, num_prompt),
            bias=bias,
            bias_values=bias_values,
            penalties=self._penalties(rows, rare, tokens, num_prompt),
        )

    def _banned(
        self,
        rows: npt.NDArray[np.intp],
        num_outputs: _Ids,
        rare: Sequence[_Placed],
        tokens: RaggedRows,
        num_prompt: _Ids,
    ) -> Coordinates:
        found = {
            int(place): self._rare[rows[place]].end_ids
            for place in np.flatnonzero(num_outputs < self._min_tokens[rows])
        }
        for one in rare:
            if one.rare.bad_words is not None:
                output_ids = tokens.values[one.row, num_prompt[one.row] : tokens.lengths[one.row]]
                banned = one.rare.bad_words.banned(output_ids)
                found[one.place] = np.union1d(banned, found.get(one.place, _NO_IDS))
        return _coordinates(found)

    def _penalties(
        self, rows: npt.NDArray[np.intp], rare: Sequence[_Placed], tokens: RaggedRows, num_prompt: _Ids
    ) -> Penalties | None:
        ids: dict[int, _Ids] = {}
        times: list[npt.NDArray[np.float32]] = []
        for one in rare:
            counts = one.rare.counts
            if counts is not None:
                counts.advance(tokens.values[one.row, : tokens.lengths[one.row]], int(num_prompt[one.row]))
                ids[one.place], count = counts.columns()
                times.append(count)
        if not ids:
            return None
        at = _coordinates(ids)
        owners = rows[at.rows]
        return Penalties(
            at=at,
            counts=np.concatenate(times),
            repetition=self._repetition[owners],
            presence=self._presence[owners],
            frequency=self._frequency[owners],
        )


def _bias(rare: Sequence[_Placed]) -> tuple[Coordinates, npt.NDArray[np.float32]]:
    biased = [one for one in rare if len(one.rare.bias_ids)]
    if not biased:
        return no_coordinates(), np.zeros(0, dtype=np.float32)
    at = _coordinates({one.place: one.rare.bias_ids for one in biased})
    return at, np.concatenate([one.rare.bias_values for one in biased])


def _rare(params: SamplingParams, end_ids: Sequence[int], embedded: Sequence[slice]) -> _Rare:
    with_prompt = params.repetition_penalty != 1.0
    penalised = with_prompt or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
    return _Rare(
        end_ids=np.unique(np.array(end_ids, dtype=np.int64)),
        allowed=None if params.allowed_token_ids is None else np.unique(np.array(params.allowed_token_ids, np.int64)),
        bias_ids=np.array(list(params.logit_bias), dtype=np.int64),
        bias_values=np.array(list(params.logit_bias.values()), dtype=np.float32),
        bad_words=BadWords(params.bad_words_token_ids) if params.bad_words_token_ids else None,
        counts=TokenCounts(with_prompt=with_prompt, embedded=embedded) if penalised else None,
    )


def _coordinates(ids_by_place: dict[int, _Ids]) -> Coordinates:
    if not ids_by_place:
        return no_coordinates()
    places = np.array(list(ids_by_place), dtype=np.int64)
    return Coordinates(
        np.repeat(places, [len(ids) for ids in ids_by_place.values()]), np.concatenate([*ids_by_place.values()])
    )
