"""Memory for packed weights."""

from __future__ import annotations

import gc
from pathlib import Path

import torch

from corefw_cpu_kernels.weight_memory import WeightMemory

_MIB = 2**20


def _is_mapped(address: int) -> bool:
    ranges = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(begin, 16) <= address < int(end, 16) for begin, end in ranges)


def test_weights_stand_one_after_the_other_and_large_ones_alone() -> None:
    memory = WeightMemory(4 * _MIB)
    first = memory.new(100, dtype=torch.uint8)
    second = memory.new(2, 3, 5, dtype=torch.bfloat16)
    large = memory.new(9 * _MIB, dtype=torch.uint8)
    assert (second.shape, second.dtype) == ((2, 3, 5), torch.bfloat16)
    assert second.data_ptr() - first.data_ptr() == 128
    assert first.data_ptr() % (2 * _MIB) == large.data_ptr() % (2 * _MIB) == 0
    for value, tensor in enumerate((first, second, large)):
        tensor.fill_(value + 1)
    assert [bool((tensor == value + 1).all()) for value, tensor in enumerate((first, second, large))] == [True] * 3


def test_memory_goes_with_its_last_weight() -> None:
    memory = WeightMemory(512 * _MIB)
    weights = [memory.new(100, dtype=torch.uint8) for _ in range(3)]
    inside = weights[0].data_ptr() + 400 * _MIB  # where nothing else comes to lie so soon
    assert _is_mapped(inside)
    last = weights.pop().view(torch.int8)[5:]  # a view holds it as well
    weights.clear()
    gc.collect()
    assert _is_mapped(inside)
    del last
    gc.collect()
    assert not _is_mapped(inside)
    assert memory.new(3, dtype=torch.uint8).numel() == 3
