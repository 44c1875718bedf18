"""What the sampler is told about the rows of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from corefw.messages.sampling import ALL_LOGPROBS, GREEDY_EPS

__all__ = ["NO_LOGPROBS", "BoundProcessor", "Coordinates", "Penalties", "SamplingMetadata", "no_coordinates"]

# As a number of log-probabilities: none; -1 is all.
NO_LOGPROBS = -2


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Single logits: int64 [N] rows and ids, no pair twice."""

    rows: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)


def no_coordinates() -> Coordinates:
    """None at all."""
    none = np.zeros(0, dtype=np.int64)
    return Coordinates(none, none)


@dataclass(frozen=True, slots=True)
class Penalties:
    """Tokens that rows have seen. N of them.

    Attributes:
        at: where, prompt tokens included.
        counts: float32 [N], how often in the output.
        repetition, presence, frequency: float32 [N], the row's parameters.
    """

    at: Coordinates
    counts: npt.NDArray[np.float32]
    repetition: npt.NDArray[np.float32]
    presence: npt.NDArray[np.float32]
    frequency: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BoundProcessor:
    """A logits processor with the state of a row's request.

    Attributes:
        name: of the processor, for errors.
        row: of the step.
        changes_argmax: which of the two places it has.
        apply: [V] → [V].
    """

    name: str
    row: int
    changes_argmax: bool
    apply: Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class SamplingMetadata:
    """Columns over the R rows that get a token, on the host; what few rows ask for only where they do.

    Attributes:
        temperature: float64 [R].
        top_p: float64 [R].
        top_k: int64 [R], 0 keeps all.
        min_p: float64 [R].
        seeds: int64 [R].
        positions: int64 [R], index of the new token among its request's outputs.
        num_logprobs: int64 [R], ``NO_LOGPROBS`` where none are wanted, -1 for all.
        allowed: (row, int64 ids) of rows that may have these alone.
        banned: tokens that bad words and ``min_tokens`` forbid in this step.
        bias: where logits are biased.
        bias_values: float32, one for each of them.
        penalties: None where no row has any.
        processors: in order of application.
    """

    temperature: npt.NDArray[np.float64]
    top_p: npt.NDArray[np.float64]
    top_k: npt.NDArray[np.int64]
    min_p: npt.NDArray[np.float64]
    seeds: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    num_logprobs: npt.NDArray[np.int64]
    allowed: tuple[tuple[int, npt.NDArray[np.int64]], ...] = ()
    banned: Coordinates = field(default_factory=no_coordinates)
    bias: Coordinates = field(default_factory=no_coordinates)
    bias_values: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    penalties: Penalties | None = None
    processors: tuple[BoundProcessor, ...] = ()

    @property
    def random_rows(self) -> npt.NDArray[np.intp]:
        """Rows that aren't greedy."""
        return np.flatnonzero(self.temperature >= GREEDY_EPS)

    @property
    def is_plain(self) -> bool:
        """Whether nothing but temperature and filters changes the model's logits, and a token is all that is wanted."""
        if self.penalties is not None or self.allowed or self.processors or len(self.banned) or len(self.bias):
            return False
        return not len(self.logprob_rows)

    @property
    def is_plain_greedy(self) -> bool:
        """Whether every row wants its most likely token as the model has it, and nothing else."""
        return self.is_plain and not len(self.random_rows)

    @property
    def logprob_rows(self) -> npt.NDArray[np.intp]:
        """Rows that want log-probabilities."""
        return np.flatnonzero(self.num_logprobs != NO_LOGPROBS)

    @property
    def full_logprob_rows(self) -> npt.NDArray[np.intp]:
        """Rows that want those of the whole vocabulary."""
        return np.flatnonzero(self.num_logprobs == ALL_LOGPROBS)
