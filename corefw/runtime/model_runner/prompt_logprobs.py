"""Log-probabilities of prompts, collected while their chunks are computed.

Shapes: T tokens of the step, N positions of a prompt, E hidden elements, V vocabulary rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from corefw.messages.arrays import Array
from corefw.messages.outputs import PromptLogprobs
from corefw.messages.sampling import ALL_LOGPROBS
from corefw.runtime.sampling.logprobs import token_logprobs

if TYPE_CHECKING:
    from collections.abc import Callable

    from corefw.messages.scheduling import SchedulerOutput
    from corefw.runtime.model_runner.batch_state import BatchState
    from corefw.runtime.model_runner.input_preparation import StepInputs
    from corefw.runtime.sampling.sampler import Sampler

__all__ = ["MAX_PROMPT_ROWS", "PromptLogprobsCollector"]

# Logits of prompts are computed for this many positions at once: a bound for memory, however long the prompts are.
MAX_PROMPT_ROWS = 32


@dataclass(slots=True)
class _Collected:
    """Of one request: how many it wants a position, and what the chunks gave so far."""

    num_logprobs: int
    parts: list[tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], npt.NDArray[np.int32]]] = field(
        default_factory=list
    )


class PromptLogprobsCollector:
    """Between steps keeps what is done, on the host. A request that comes back with outputs has been told already.

    Args:
        sampler: knows the mode.
        vocab_size: ids that can be decoded.
    """

    def __init__(self, sampler: Sampler, vocab_size: int) -> None:
        self._sampler = sampler
        self._vocab_size = vocab_size
        self._collected: dict[str, _Collected] = {}

    def update(self, scheduled: SchedulerOutput) -> None:
        """Forget who left, note who came and asks."""
        for request_id in (*scheduled.finished_request_ids, *scheduled.preempted_request_ids):
            self._collected.pop(request_id, None)
        for request in scheduled.new_requests:
            wanted = request.params.prompt_logprobs
            if wanted is not None and not request.output_ids:
                count = self._vocab_size if wanted == ALL_LOGPROBS else min(wanted, self._vocab_size)
                self._collected[request.request_id] = _Collected(count)

    def collect(
        self,
        batch: BatchState,
        inputs: StepInputs,
        hidden_TE: torch.Tensor,
        compute_logits: Callable[[torch.Tensor], torch.Tensor],
    ) -> dict[str, PromptLogprobs]:
        """Take in a step. By request id, what is complete: that of requests that get their first token now."""
        if not self._collected:
            return {}
        starts = inputs.query_starts.tolist()
        for place, row in enumerate(inputs.rows.tolist()):
            collected = self._collected.get(batch.request_ids[row])
            if collected is not None:
                hidden = hidden_TE[starts[place] : starts[place + 1]]
                self._extend(collected, hidden, self._targets(batch, row), compute_logits)
        sampled = [batch.request_ids[row] for row in inputs.rows[inputs.sampled].tolist()]
        return {name: _joined(self._collected.pop(name)) for name in sampled if name in self._collected}

    def _targets(self, batch: BatchState, row: int) -> npt.NDArray[np.int64]:
        """The prompt tokens that follow the step's first token."""
        first = int(batch.num_computed[row]) + 1
        return batch.tokens.values[row, first : int(batch.num_prompt[row])].astype(np.int64)

    def _extend(
        self,
        collected: _Collected,
        hidden_NE: torch.Tensor,
        targets: npt.NDArray[np.int64],
        compute_logits: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        size = min(len(hidden_NE), len(targets))
        for start in range(0, size, MAX_PROMPT_ROWS):
            end = min(start + MAX_PROMPT_ROWS, size)
            logits = compute_logits(hidden_NE[start:end])
            logprobs = self._sampler.read_logprobs(logits)[:, : self._vocab_size]
            ids = torch.from_numpy(targets[start:end]).to(logits.device)
            token_ids, values, ranks = token_logprobs(logprobs, ids, collected.num_logprobs)
            collected.parts.append(
                (
                    token_ids.cpu().numpy().astype(np.int32),
                    values.cpu().numpy(),
                    ranks.cpu().numpy().astype(np.int32),
                )
            )


def _joined(collected: _Collected) -> PromptLogprobs:
    width = 1 + collected.num_logprobs
    nothing = (np.zeros((0, width), np.int32), np.zeros((0, width), np.float32), np.zeros(0, np.int32))
    token_ids, values, ranks = zip(nothing, *collected.parts, strict=True)
    return PromptLogprobs(
        token_ids=Array.from_numpy(np.concatenate(token_ids)),
        logprobs=Array.from_numpy(np.concatenate(values)),
        ranks=Array.from_numpy(np.concatenate(ranks)),
    )
