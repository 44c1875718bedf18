"""Embeddings in prompts: kept until they are computed, and cut to what a step computes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from corefw.errors import ConfigError
from corefw.messages.request import spans_within

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.messages.request import EmbeddingSpan
    from corefw.messages.scheduling import SchedulerOutput
    from corefw.runtime.model_runner.batch_state import BatchState
    from corefw.runtime.model_runner.execution import RunnableModel
    from corefw.runtime.model_runner.input_preparation import StepInputs

__all__ = ["HeldEmbeds", "PlacedEmbeds", "check_accepts_embeds"]


@dataclass(frozen=True, slots=True)
class PlacedEmbeds:
    """What tokens of a step enter the first layer with.

    Attributes:
        start: index of the first of them among the step's tokens.
        values: float32 [N, E] on the device.
    """

    start: int
    values: torch.Tensor


class HeldEmbeds:
    """Spans of the requests that aren't through them yet. Empty, and without cost to a step, when nobody has any.

    Args:
        device: where the model runs.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spans: dict[str, Sequence[EmbeddingSpan]] = {}

    def update(self, scheduled: SchedulerOutput) -> None:
        """Forget who left, note who came with embeddings."""
        if self._spans:
            for request_id in (*scheduled.finished_request_ids, *scheduled.preempted_request_ids):
                self._spans.pop(request_id, None)
        for request in scheduled.new_requests:
            if request.prompt_embeds:
                self._spans[request.request_id] = request.prompt_embeds

    def of_step(self, batch: BatchState, inputs: StepInputs) -> Sequence[PlacedEmbeds]:
        """The embeddings among the step's tokens."""
        if not self._spans:
            return ()
        placed: list[PlacedEmbeds] = []
        query_starts = inputs.query_starts.tolist()
        for place, row in enumerate(inputs.rows.tolist()):
            request_id = batch.request_ids[row]
            spans = self._spans.get(request_id)
            if spans is None:
                continue
            start = int(batch.num_computed[row])
            stop = start + query_starts[place + 1] - query_starts[place]
            placed += self._cut(spans, start, stop, query_starts[place])
            if stop >= spans[-1].stop:
                del self._spans[request_id]  # a preempted request comes back with them
        return placed

    def _cut(self, spans: Sequence[EmbeddingSpan], start: int, stop: int, index: int) -> Iterator[PlacedEmbeds]:
        """Those at positions start to stop of a request; position ``start`` is the step's token ``index``."""
        for span, first, last in spans_within(spans, start, stop):
            rows = span.values.to_numpy()[first - span.offset : last - span.offset]
            # A copy: the buffer is read-only, which a tensor can't be.
            values = torch.from_numpy(rows.copy()).to(self._device)
            yield PlacedEmbeds(index + first - start, values)


def check_accepts_embeds(model: RunnableModel, config: EngineConfig) -> None:
    """Refuse ``--enable-prompt-embeds`` with a model that would compute something else.

    Raises:
        ConfigError: the model doesn't declare ``accepts_embeds``.
    """
    if not config.model.enable_prompt_embeds:
        return
    info = config.model_info
    if not getattr(model, "accepts_embeds", False) or not isinstance(info.hf_config.get("hidden_size"), int):
        raise ConfigError(
            f"--enable-prompt-embeds: the model class {type(model).__name__} of {info.architecture[:80]} takes no "
            "embeddings: it doesn't declare accepts_embeds = True (with embed, a third argument of forward, and "
            "hidden_size in its configuration); leave the flag out"
        )
