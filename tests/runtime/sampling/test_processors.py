"""What logits processors are told of a request."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from corefw.interfaces.logits_processor import LogitsProcessor, SampledRequest
from corefw.messages.arrays import Array
from corefw.messages.request import EmbeddingSpan
from corefw.messages.sampling import SamplingParams
from corefw.messages.scheduling import CachedRequests, NewRequest, SchedulerOutput
from corefw.runtime.sampling.processors import RequestProcessors
from corefw.testing.configs import fake_config


class Listener(LogitsProcessor[None]):
    """Remembers the prompts that it was told."""

    name: ClassVar[str] = "listener"

    def __init__(self) -> None:
        super().__init__(fake_config(), 10)
        self.prompts: list[list[int]] = []

    def state(self, request: SampledRequest) -> None:
        self.prompts.append(list(request.prompt_ids))

    def apply(self, state: None, logits_V: torch.Tensor, output_ids: npt.NDArray[np.int32]) -> torch.Tensor:
        return logits_V


def test_positions_with_embeddings_have_no_token_id() -> None:
    span = EmbeddingSpan(offset=1, values=Array.from_numpy(np.ones((2, 4), np.float32)))
    request = NewRequest(
        request_id="r", prompt_ids=[7, 0, 0, 0], output_ids=[], params=SamplingParams(), eos_ids=(), block_ids=[[1]],
        num_computed_tokens=0, prompt_embeds=(span,),
    )  # fmt: skip
    scheduled = SchedulerOutput(
        step=1,
        new_requests=[request],
        cached_requests=CachedRequests(request_ids=[], num_computed_tokens=[], num_output_tokens=[], new_block_ids=[]),
        num_scheduled_tokens={"r": 4},
        total_num_scheduled_tokens=4,
        finished_request_ids=[],
        preempted_request_ids=[],
        block_ids_to_zero=[[]],
    )
    listener = Listener()
    RequestProcessors([listener]).update(scheduled)
    assert listener.prompts == [[7, -1, -1, 0]]
