"""Tensor-parallel ranks inside one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from corefw.models.layers.context import BuildContext, TensorParallel
from corefw.testing.paged_loop import cpu_build_context


class Group:
    """Ranks as threads of one process: collectives wait for everybody and combine what they brought."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._barrier = threading.Barrier(size, timeout=60)
        self._brought: list[torch.Tensor] = [torch.empty(0)] * size

    def context(self, rank: int) -> TensorParallel:
        return TensorParallel(
            rank,
            self._size,
            all_reduce=lambda part: self._exchange(rank, part, lambda all_: torch.stack(all_).sum(0)),
            all_gather=lambda part: self._exchange(rank, part, lambda all_: torch.cat(all_, -1)),
        )

    def _exchange(self, rank: int, part: torch.Tensor, combine: Callable[[list[torch.Tensor]], torch.Tensor]) -> Any:
        self._brought[rank] = part
        self._barrier.wait()
        result = combine(self._brought)
        self._barrier.wait()
        return result

    def run(self, work: Callable[[BuildContext], Any]) -> list[Any]:
        results: list[Any] = [None] * self._size
        builds = [cpu_build_context(tp=self.context(rank)) for rank in range(self._size)]

        def one(rank: int) -> None:
            results[rank] = work(builds[rank])

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self._size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results
