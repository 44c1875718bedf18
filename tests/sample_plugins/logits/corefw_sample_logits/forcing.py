"""Processors that a test can see at work: one forces tokens, one raises, one sharpens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from corefw.interfaces.logits_processor import LogitsProcessor, SampledRequest


@dataclass
class Progress:
    """Of a request: the token to force, and how many tokens it has."""

    token_id: int
    num_outputs: int


class EveryFifth(LogitsProcessor[Progress]):
    """Makes every fifth output token the one that ``extra_args["every_fifth"]`` names."""

    name = "every_fifth"

    def state(self, request: SampledRequest) -> Progress | None:
        """None without that argument."""
        token_id = request.params.extra_args.get("every_fifth")
        return None if token_id is None else Progress(token_id, len(request.output_ids))

    def apply(self, state: Progress, logits_V: torch.Tensor, output_ids: npt.NDArray[np.int32]) -> torch.Tensor:
        """Counts on its own, so that a call too many or too few is found."""
        if state.num_outputs != len(output_ids):
            raise RuntimeError(f"called {state.num_outputs} times for {len(output_ids)} tokens")
        state.num_outputs += 1
        if state.num_outputs % 5 == 0:
            forced = torch.full_like(logits_V, -torch.inf)
            forced[state.token_id] = 0.0
            return forced
        return logits_V


class FailsAt(LogitsProcessor[int]):
    """Raises when the request has ``extra_args["fails_at"]`` output tokens; at -1 already when it enters."""

    name = "fails_at"

    def state(self, request: SampledRequest) -> int | None:
        """Where to raise."""
        position = request.params.extra_args.get("fails_at")
        if position == -1:
            raise ValueError("told to fail on entering")
        return None if position is None else int(position)

    def apply(self, state: int, logits_V: torch.Tensor, output_ids: npt.NDArray[np.int32]) -> torch.Tensor:
        """Spoils the row before it raises."""
        if len(output_ids) == state:
            logits_V.fill_(float("nan"))
            raise ValueError(f"told to fail at token {state}")
        return logits_V


class Sharpen(LogitsProcessor[float]):
    """Multiplies logits after temperature; the most likely token stays."""

    name = "sharpen"
    changes_argmax = False

    def state(self, request: SampledRequest) -> float | None:
        """The factor."""
        factor = request.params.extra_args.get("sharpen")
        return None if factor is None else float(factor)

    def apply(self, state: float, logits_V: torch.Tensor, output_ids: npt.NDArray[np.int32]) -> torch.Tensor:
        """In place."""
        return logits_V.mul_(state)
