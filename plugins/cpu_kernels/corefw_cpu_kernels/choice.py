"""The most likely tokens in bfloat16, and random ones; see ``csrc/kernels_choice.cpp``."""

from __future__ import annotations

import torch

from corefw_cpu_kernels.calls import Kernel
from corefw_cpu_kernels.rows import new_rows, rows_of

__all__ = ["drawn", "most_likely"]

_drawn, _most_likely = Kernel("drawn"), Kernel("most_likely")


def most_likely(logits: torch.Tensor, num_ids: int) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [R, V] → the largest of the first ``num_ids`` of each row [R], and its id [R]."""
    rows = rows_of(logits)
    values, ids = new_rows(len(rows)), torch.empty(len(rows), dtype=torch.int64)
    _most_likely(values, ids, rows, len(rows), rows.stride(0), min(num_ids, rows.shape[1]))
    return values, ids


def drawn(
    logits: torch.Tensor,
    num_ids: int,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    numbers: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [R, V] → the largest of the first ``num_ids`` of each row [R], and a token's id [R], drawn at random."""
    rows = rows_of(logits)
    values, ids = new_rows(len(rows)), torch.empty(len(rows), dtype=torch.int64)
    columns = [column.contiguous() for column in (temperature, top_k, top_p, min_p, numbers)]
    _drawn(values, ids, rows, *columns, len(rows), rows.stride(0), min(num_ids, rows.shape[1]))
    return values, ids
