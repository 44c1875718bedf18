"""The most likely tokens in bfloat16; see ``csrc/kernels_choice.cpp``."""

from __future__ import annotations

import torch

from corefw_cpu_kernels.calls import Kernel
from corefw_cpu_kernels.rows import new_rows, rows_of

__all__ = ["most_likely"]

_most_likely = Kernel("most_likely")


def most_likely(logits: torch.Tensor, num_ids: int) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [R, V] → the largest of the first ``num_ids`` of each row [R], and its id [R]."""
    rows = rows_of(logits)
    values, ids = new_rows(len(rows)), torch.empty(len(rows), dtype=torch.int64)
    _most_likely(values, ids, rows, len(rows), rows.stride(0), min(num_ids, rows.shape[1]))
    return values, ids
