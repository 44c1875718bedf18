"""From logits to the step's result; the sampled tokens go into the batch at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from corefw.messages.arrays import Array
from corefw.messages.outputs import ModelRunnerOutput, StepLogprobs
from corefw.runtime.model_runner.batch_state import BatchState
from corefw.runtime.model_runner.input_preparation import StepInputs
from corefw.runtime.sampling.logprobs import SampledLogprobs
from corefw.runtime.sampling.sampler import Sampler

__all__ = ["SamplingOutput"]

_FAILED = "the model's output for this request was not finite, or nothing was left to choose from"


class SamplingOutput:
    """Calls the sampler and brings its choice back to the host."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def finish(self, batch: BatchState, inputs: StepInputs, logits: torch.Tensor | None) -> ModelRunnerOutput:
        """Sample, append each token to its request's row, and report. A failed row gets no token."""
        request_ids = [batch.request_ids[row] for row in inputs.rows]
        sampled: list[list[int]] = [[] for _ in request_ids]
        if logits is None:
            return ModelRunnerOutput(request_ids=request_ids, sampled_token_ids=sampled)
        rows = inputs.rows[inputs.sampled]
        with torch.inference_mode():
            result = self._sampler(logits, batch.sampling.gather(rows, batch.num_outputs[rows]))
        failed = result.failed.cpu().numpy()
        token_ids = result.token_ids.cpu().numpy()
        batch.append_tokens(rows[~failed], token_ids[~failed])
        for index, token_id in zip(inputs.sampled[~failed].tolist(), token_ids[~failed].tolist(), strict=True):
            sampled[index] = [token_id]
        return ModelRunnerOutput(
            request_ids=request_ids,
            sampled_token_ids=sampled,
            logprobs=_step_logprobs(result.logprobs, inputs.sampled, failed),
            failed={request_ids[index]: _FAILED for index in inputs.sampled[failed].tolist()},
        )


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
