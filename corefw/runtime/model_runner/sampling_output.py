"""From logits to the step's result; the sampled tokens go into the batch at once."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch

from corefw.messages.arrays import Array
from corefw.messages.outputs import ModelRunnerOutput, PromptLogprobs, StepLogprobs
from corefw.messages.scheduling import SchedulerOutput
from corefw.runtime.model_runner.batch_state import BatchState
from corefw.runtime.model_runner.execution import Chosen
from corefw.runtime.model_runner.input_preparation import StepInputs
from corefw.runtime.sampling.logprobs import SampledLogprobs
from corefw.runtime.sampling.processors import RequestProcessors
from corefw.runtime.sampling.sampler import Sampler, SamplerOutput

__all__ = ["SamplingOutput"]

_FAILED = "the model's output for this request was not finite, or nothing was left to choose from"
_EMPTIED = (
    "allowed_token_ids, bad_words and min_tokens together leave no token to choose at output position {}; loosen one"
)


class SamplingOutput:
    """Calls the sampler and brings its choice back to the host.

    Args:
        sampler: the chain.
        processors: logits processor plugins.
    """

    def __init__(self, sampler: Sampler, processors: RequestProcessors | None = None) -> None:
        self._sampler = sampler
        self._processors = processors or RequestProcessors()

    def update(self, scheduled: SchedulerOutput) -> None:
        """Let processors know who left and who came."""
        self._processors.update(scheduled)

    def is_greedy(self, batch: BatchState, inputs: StepInputs) -> bool:
        """Whether all that the step is to give is each row's most likely token."""
        return not self._processors.any_bound and batch.sampling.are_greedy(inputs.rows[inputs.sampled])

    def finish(
        self,
        batch: BatchState,
        inputs: StepInputs,
        logits: torch.Tensor | None,
        prompt_logprobs: dict[str, PromptLogprobs],
        chosen: Chosen | None = None,
    ) -> ModelRunnerOutput:
        """Sample, unless the tokens are chosen already; append each to its request's row, and report.

        A failed row gets no token, and its request is about to end. The batch counts one all the same: a step that is
        on its way already may go on from there.
        """
        request_ids = [batch.request_ids[row] for row in inputs.rows.tolist()]
        errors = self._processors.failed_of(request_ids)
        if logits is None and chosen is None:
            return ModelRunnerOutput(
                request_ids=request_ids, sampled_token_ids=[[] for _ in request_ids], failed=errors
            )
        if chosen is not None and not errors and (token_ids := _all_of(chosen)) is not None:
            batch.append_tokens(inputs.rows[inputs.sampled], token_ids)
            sampled = _by_request(len(request_ids), inputs.sampled, token_ids, None)
            return ModelRunnerOutput(
                request_ids=request_ids, sampled_token_ids=sampled, prompt_logprobs=prompt_logprobs
            )
        rows = inputs.rows[inputs.sampled]
        result = _taken(chosen) if logits is None else self._sample(batch, rows, logits)
        failed = result.failed.cpu().numpy()
        if errors:
            failed |= np.array([request_ids[index] in errors for index in inputs.sampled.tolist()], dtype=np.bool_)
        any_failed = bool(failed.any())
        token_ids = result.token_ids.cpu().numpy()
        batch.append_tokens(rows, np.where(failed, 0, token_ids) if any_failed else token_ids)
        refused = self._explain(batch, inputs, request_ids, result, failed, errors) if any_failed else {}
        return ModelRunnerOutput(
            request_ids=request_ids,
            sampled_token_ids=_by_request(len(request_ids), inputs.sampled, token_ids, failed if any_failed else None),
            logprobs=_step_logprobs(result.logprobs, inputs.sampled, failed),
            full_logprobs=_step_logprobs(result.full_logprobs, inputs.sampled, failed),
            prompt_logprobs=prompt_logprobs,
            failed=errors,
            refused=refused,
        )

    def _explain(
        self,
        batch: BatchState,
        inputs: StepInputs,
        request_ids: list[str],
        result: SamplerOutput,
        failed: npt.NDArray[np.bool_],
        errors: dict[str, str],
    ) -> dict[str, str]:
        """Add to the errors why rows got no token; returns those where the request's own parameters are at fault."""
        emptied = np.zeros_like(failed) if result.emptied is None else result.emptied.cpu().numpy()
        refused: dict[str, str] = {}
        for place in np.flatnonzero(failed).tolist():
            name = request_ids[inputs.sampled[place]]
            if emptied[place] and place not in result.errors and name not in errors:
                row = int(inputs.rows[inputs.sampled[place]])
                refused[name] = _EMPTIED.format(len(_output_ids(batch, row)) - 1)
            else:
                errors.setdefault(name, result.errors.get(place, _FAILED))
        return refused

    def _sample(self, batch: BatchState, rows: npt.NDArray[np.intp], logits: torch.Tensor) -> SamplerOutput:
        metadata = batch.sampling.gather(rows, batch.tokens, batch.num_prompt)
        if self._processors.any_bound:
            bound = [
                processor
                for place, row in enumerate(rows.tolist())
                for processor in self._processors.bind(place, batch.request_ids[row], _output_ids(batch, row))
            ]
            metadata = dataclasses.replace(metadata, processors=tuple(bound))
        with torch.inference_mode():
            return self._sampler(logits, metadata)


def _all_of(chosen: Chosen) -> npt.NDArray[np.int64] | None:
    """What the model chose; None where a row's logits aren't numbers."""
    values, token_ids = chosen
    if not np.isfinite(values.float().cpu().numpy()).all():
        return None
    return token_ids.cpu().numpy()


def _taken(chosen: Chosen | None) -> SamplerOutput:
    """What the model chose, as the sampler would have told it."""
    assert chosen is not None, "there are logits, or what was chosen from them"
    values, token_ids = chosen
    return SamplerOutput(token_ids, ~values.isfinite())


def _by_request(
    num_requests: int,
    sampled: npt.NDArray[np.intp],
    token_ids: npt.NDArray[np.int64],
    failed: npt.NDArray[np.bool_] | None,
) -> list[list[int]]:
    """One list a request of the step, empty where it got no token."""
    if failed is None and len(sampled) == num_requests:
        return [[token_id] for token_id in token_ids.tolist()]
    if failed is not None:
        sampled, token_ids = sampled[~failed], token_ids[~failed]
    found: list[list[int]] = [[] for _ in range(num_requests)]
    for index, token_id in zip(sampled.tolist(), token_ids.tolist(), strict=True):
        found[index] = [token_id]
    return found


def _output_ids(batch: BatchState, row: int) -> npt.NDArray[np.int32]:
    return batch.tokens.values[row, batch.num_prompt[row] : batch.tokens.lengths[row]]


def _step_logprobs(
    logprobs: SampledLogprobs | None, sampled: npt.NDArray[np.intp], failed: npt.NDArray[np.bool_]
) -> StepLogprobs | None:
    """Leaves out failed rows, so that no NaN goes out."""
    if logprobs is None:
        return None
    rows = logprobs.rows.cpu().numpy()
    good = ~failed[rows]
    if not good.any():
        return None
    return StepLogprobs(
        rows=sampled[rows[good]].tolist(),
        token_ids=Array.from_numpy(logprobs.token_ids.cpu().numpy()[good].astype(np.int32)),
        logprobs=Array.from_numpy(logprobs.logprobs.cpu().numpy()[good]),
        ranks=Array.from_numpy(logprobs.ranks.cpu().numpy()[good].astype(np.int32)),
    )
