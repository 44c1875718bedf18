"""Calls go by address, and a tape makes them again."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from corefw_cpu_kernels import norms
from corefw_cpu_kernels.calls import Kernel, Tape


def _rows(seed: int) -> torch.Tensor:
    return torch.randn(3, 40, generator=torch.Generator().manual_seed(seed)).bfloat16()


def test_a_replayed_tape_computes_from_what_its_inputs_hold_now() -> None:
    input, weight, tape = _rows(0), _rows(1)[0], Tape()
    with tape.record():
        middle = norms.rms_norm(input, weight, 1e-5)
        out = norms.rms_norm(middle, weight, 1e-5)
    assert len(tape) == 2
    input.copy_(_rows(2))
    tape.replay()
    assert torch.equal(out, norms.rms_norm(norms.rms_norm(input, weight, 1e-5), weight, 1e-5))


def test_a_call_after_the_recording_is_not_on_the_tape() -> None:
    tape = Tape()
    with tape.record():
        norms.rms_norm(_rows(0), _rows(1)[0], 1e-5)
    norms.rms_norm(_rows(0), _rows(1)[0], 1e-5)
    assert len(tape) == 1


def test_calls_of_a_tape_that_follow_at_once_do_not_get_each_others_tasks() -> None:
    wide, narrow = torch.randn(64, 1536).bfloat16(), torch.randn(200, 576).bfloat16()
    tape, outs = Tape(), []
    with tape.record():
        for _ in range(20):
            outs += [norms.rms_norm(rows, rows[0], 1e-5) for rows in (wide, narrow)]
    expected = [out.clone() for out in outs]
    for _ in range(20):
        for out in outs:
            out.zero_()
        tape.replay()
        assert all(map(torch.equal, outs, expected))


def test_two_tapes_do_not_record_at_once() -> None:
    with Tape().record(), pytest.raises(RuntimeError, match="another tape"), Tape().record():
        pass


def test_what_another_thread_computes_is_not_on_the_tape() -> None:
    tape = Tape()
    with tape.record(), ThreadPoolExecutor(1) as other:
        norms.rms_norm(_rows(0), _rows(1)[0], 1e-5)
        other.submit(norms.rms_norm, _rows(0), _rows(1)[0], 1e-5).result()
    assert len(tape) == 1


def test_two_threads_record_each_a_tape_of_its_own() -> None:
    mine, others = Tape(), Tape()

    def record() -> None:
        with others.record():
            for _ in range(2):
                norms.rms_norm(_rows(0), _rows(1)[0], 1e-5)

    with mine.record(), ThreadPoolExecutor(1) as other:
        other.submit(record).result()
        norms.rms_norm(_rows(0), _rows(1)[0], 1e-5)
    assert (len(mine), len(others)) == (1, 2)


def test_a_float_where_a_whole_number_belongs_is_refused() -> None:
    kernel = Kernel("rms_norm")
    input = _rows(0)
    kernel(input, input, input[0], 0, 40, 40, 1e-5, 0.0)
    with pytest.raises(Exception, match="integer"):
        kernel(input, input, input[0], 0.5, 40, 40, 1e-5, 0.0)


def test_an_unknown_kernel_is_named() -> None:
    with pytest.raises(OSError, match="no kernel 'no_such'"):
        Kernel("no_such")(1)


def test_the_process_has_one_openmp_runtime() -> None:
    """In a process of its own: other tests may have loaded libraries that bring one."""
    code = """
from pathlib import Path
import torch
from corefw_cpu_kernels import norms
norms.rms_norm(torch.ones(512, 512).bfloat16(), torch.ones(512).bfloat16(), 1e-5)
names = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
print(sum(Path(name).name.startswith(("libgomp", "libomp", "libiomp")) for name in names))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "1"
