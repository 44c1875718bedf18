"""A processor that does what native code does when it crashes."""

from __future__ import annotations

import os
import signal

import numpy as np
import numpy.typing as npt
import torch

from corefw.interfaces.logits_processor import LogitsProcessor, SampledRequest


class KillsAt(LogitsProcessor[int]):
    """Kills its process when the request has ``extra_args["kills_at"]`` output tokens."""

    name = "kills_at"

    def state(self, request: SampledRequest) -> int | None:
        """Where to do it."""
        position = request.params.extra_args.get("kills_at")
        return None if position is None else int(position)

    def apply(self, state: int, logits_V: torch.Tensor, output_ids: npt.NDArray[np.int32]) -> torch.Tensor:
        """Leaves no word behind."""
        if len(output_ids) == state:
            os.kill(os.getpid(), signal.SIGKILL)
        return logits_V
