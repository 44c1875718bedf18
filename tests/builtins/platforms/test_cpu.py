from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from corefw.builtins.platforms.cpu import CpuPlatform
from corefw.builtins.platforms.cpu_runtime import CpuRuntime
from corefw.config.model_info import ModelInfo
from corefw.host import Host

MIB = 2**20


@pytest.mark.parametrize(
    ("line", "dtypes"),
    [
        ("flags\t\t: fpu avx2 avx512f\n", ("float32",)),
        ("flags\t\t: fpu avx512_bf16\n", ("bfloat16", "float32")),
        ("flags\t\t: fpu amx_bf16\n", ("bfloat16", "float32")),
        ("Features\t: fp asimd bf16\n", ("bfloat16", "float32")),
        ("", ("float32",)),
    ],
)
def test_bfloat16_is_offered_where_the_cpu_computes_in_it(tmp_path: Path, line: str, dtypes: tuple[str, ...]) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\n{line}")
    assert tuple(CpuPlatform(Host(proc=tmp_path)).dtypes()) == dtypes


def test_the_platform_is_available_and_asks_the_torch_backend() -> None:
    platform = CpuPlatform()
    assert platform.unavailable_reason() is None
    assert tuple(platform.attention_order()) == ("cpu_kernels", "torch")


@pytest.mark.parametrize(("interactive", "tokens"), [(True, 512), (False, 2048)])
def test_steps_are_short_where_somebody_waits_unless_the_user_said_otherwise(interactive: bool, tokens: int) -> None:
    info = cast(ModelInfo, None)  # this platform's proposals don't depend on the model
    (proposal,) = CpuPlatform().propose(info, frozenset(), interactive=interactive)
    assert (proposal.section, proposal.field, proposal.value) == ("scheduler", "max_num_batched_tokens", tokens)
    for field in ("max_num_batched_tokens", "enable_chunked_prefill"):
        assert CpuPlatform().propose(info, frozenset({f"scheduler.{field}"}), interactive=interactive) == ()


def test_describing_the_platform_doesnt_import_torch() -> None:
    code = (
        "import sys\n"
        "from corefw.builtins.platforms.cpu import CpuPlatform\n"
        "from corefw.builtins.executors.uni import UniExecutor\n"
        "CpuPlatform().dtypes(), CpuPlatform().propose(None, frozenset(), interactive=True)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_peaks_are_measured_from_the_last_reset() -> None:
    code = (
        "from corefw.builtins.platforms.cpu import CpuPlatform\n"
        "runtime = CpuPlatform().runtime(0)\n"
        "bytearray(b'x') * (300 * 2**20)\n"
        "before = runtime.peak_memory_bytes(); runtime.reset_peak_memory(); reset = runtime.peak_memory_bytes()\n"
        "bytearray(b'x') * (100 * 2**20)\n"
        "print(before, reset, runtime.peak_memory_bytes())"
    )
    output = subprocess.check_output([sys.executable, "-c", code], text=True)
    before, reset, after = map(int, output.split())
    assert before - reset > 250 * MIB
    assert 90 * MIB < after - reset < 150 * MIB


def test_where_peaks_cant_be_reset_they_count_from_the_start(tmp_path: Path) -> None:
    runtime = CpuRuntime(Host(proc=tmp_path))
    runtime.reset_peak_memory()
    assert runtime.peak_memory_bytes() > 10 * MIB


def test_the_cache_takes_half_of_what_is_left_and_four_gibibytes_at_most() -> None:
    runtime = CpuRuntime()
    assert runtime.cache_budget_bytes(100) == 50
    assert runtime.cache_budget_bytes(2**40) == 4 * 2**30


def test_ranks_that_share_the_memory_share_that_half(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = CpuRuntime(Host(affinity=frozenset(range(4))))
    monkeypatch.setenv("COREFW_CPUS", "2")
    assert runtime.cache_budget_bytes(100) == 12


def test_threads_never_exceed_the_cpus_that_may_be_used() -> None:
    CpuRuntime()
    assert torch.get_num_threads() <= Host().usable_cpus()


def test_seeding_makes_every_generator_repeat_itself() -> None:
    runtime = CpuRuntime()
    draws = []
    for _ in range(2):
        runtime.seed_everything(2**40)
        draws.append((random.random(), float(np.random.rand()), float(torch.rand(1))))
    assert draws[0] == draws[1]


def test_tensors_live_on_the_cpu_and_there_is_nothing_to_wait_for() -> None:
    runtime = CpuRuntime()
    runtime.synchronize()
    assert runtime.device == torch.device("cpu")
    assert 0 < runtime.free_memory_bytes() <= runtime.total_memory_bytes()
