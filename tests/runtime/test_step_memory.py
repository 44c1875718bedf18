"""What steps take, measured where it matters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from corefw.builtins.platforms.cpu_runtime import CpuRuntime
from corefw.plugin_system.manager import PluginManager
from corefw.runtime.memory import StepMemory
from corefw.runtime.sampling.sampler import Sampler
from tests.runtime.engines import tiny_config

GIB = 2**30
LONGEST = 200  # tokens of a step: more than are tried


class _Machine(CpuRuntime):
    def __init__(self, free: int) -> None:
        super().__init__()
        self._free = free

    def free_memory_bytes(self) -> int:
        return self._free


class _Model:
    """Remembers the lengths of its steps."""

    attention_layers = ()

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def __call__(self, input_ids_T: torch.Tensor, positions_T: torch.Tensor) -> torch.Tensor:
        self.lengths.append(len(positions_T))
        return torch.zeros(len(input_ids_T), 8)

    def compute_logits(self, hidden_RE: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(hidden_RE), 50)


class _Spec:
    page_bytes = GIB

    def max_memory_bytes(self, max_model_len: int) -> int:
        return max_model_len * GIB


@pytest.mark.parametrize(
    ("free", "settings", "is_run"),
    [
        (64 * GIB, {}, False),
        (6 * GIB, {}, True),
        (6 * GIB, {"kv_cache_memory": GIB}, False),
        (6 * GIB, {"kv_cache_memory": 6 * GIB - 10**6}, True),
    ],
)
def test_the_largest_step_is_run_only_where_the_answer_depends_on_it(
    model_dir: Path, plugins: PluginManager, free: int, settings: dict[str, int], is_run: bool
) -> None:
    config = tiny_config(model_dir, plugins, max_num_batched_tokens=LONGEST, **settings)
    model = _Model()
    room = StepMemory(config, _Machine(free), model, Sampler(50), None).kv_room([_Spec()])  # type: ignore[list-item]
    assert (LONGEST in model.lengths) is is_run
    assert room.available_bytes == settings.get("kv_cache_memory") or room.available_bytes <= min(4 * GIB, free // 2)


def test_ranks_measure_unless_none_of_them_has_to(model_dir: Path, plugins: PluginManager) -> None:
    config = tiny_config(model_dir, plugins, max_num_batched_tokens=LONGEST)
    model = _Model()
    memory = StepMemory(config, _Machine(64 * GIB), model, Sampler(50), None)
    memory.kv_room([_Spec()], agree=lambda ok: False)  # type: ignore[list-item]
    assert LONGEST in model.lengths


def test_what_is_measured_is_the_chain_whatever_the_op_needs_that_draws(
    model_dir: Path, plugins: PluginManager
) -> None:
    config = tiny_config(model_dir, plugins, max_num_batched_tokens=LONGEST)
    drawn: list[object] = []
    model, sampler = _Model(), Sampler(50, draw=lambda *given: drawn.append(given))
    StepMemory(config, _Machine(6 * GIB), model, sampler, None).kv_room([_Spec()])  # type: ignore[list-item]
    assert LONGEST in model.lengths
    assert drawn == []
