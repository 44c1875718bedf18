"""What is recorded computes again from what its tensors hold; what can't be is refused by name."""

from __future__ import annotations

import subprocess
import sys
import weakref
from collections.abc import Callable

import pytest
import torch

from corefw.interfaces.graphs import CaptureRefused, Recording
from corefw_cpu_kernels import activations, norms
from corefw_cpu_kernels.calls import Kernel
from corefw_cpu_kernels.graph_capture import CpuGraphCapture, CpuRecording

_WEIGHT = torch.linspace(0.5, 1.5, 64).bfloat16()


def _rows(seed: int, rows: int = 3, width: int = 64) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).bfloat16()


def _norm(input: torch.Tensor) -> torch.Tensor:
    return norms.rms_norm(input, _WEIGHT, 1e-5)


def _recorded(capture: CpuGraphCapture, work: Callable[[], torch.Tensor]) -> Recording:
    with torch.inference_mode():
        capture.begin()
        try:
            return capture.end([work()])
        finally:
            capture.cancel()


@pytest.mark.parametrize(
    "work",
    [
        lambda rows: _norm(_norm(rows)),
        lambda rows: _norm(rows.unflatten(1, (2, 32)).transpose(0, 1).reshape(-1, 64)),
        lambda rows: _norm(rows * 1.7),
        lambda rows: _norm(rows[:, ::2].clone().view(-1, 64)) if len(rows) % 2 == 0 else _norm(rows[1:]),
        lambda rows: activations.silu_and_mul(_norm(rows)[:2]),
    ],
    ids=["chain", "copy of a transposed view", "product with a number", "copy of every other element", "slice"],
)
@pytest.mark.parametrize("num_rows", [1, 3, 4])
def test_a_replay_computes_from_what_the_inputs_hold_now(
    work: Callable[[torch.Tensor], torch.Tensor], num_rows: int
) -> None:
    rows = _rows(0, num_rows + 1)
    recording = _recorded(CpuGraphCapture(), lambda: work(rows))
    for seed in (1, 2):
        rows.copy_(_rows(seed, num_rows + 1))
        recording.replay()
        assert torch.equal(recording.outputs[0], work(rows))


def test_a_recording_tells_what_its_kernels_take() -> None:
    rows, capture = _rows(0), CpuGraphCapture()
    recording = _recorded(capture, lambda: activations.silu_and_mul(_norm(rows)))
    rows.copy_(_rows(1))
    times = recording.times_ms()
    assert [name for name, _ in times] == ["rms_norm", "silu_and_mul"]
    assert all(time_ms > 0 for _, time_ms in times)
    assert torch.equal(recording.outputs[0], activations.silu_and_mul(_norm(rows)))


def test_results_lie_in_memory_that_is_used_again_once_nobody_reads_it() -> None:
    capture, rows = CpuGraphCapture(), _rows(0, 64)

    def chain(count: int) -> torch.Tensor:
        found = rows
        for _ in range(count):
            found = _norm(found)
        return found

    few, many = _recorded(capture, lambda: chain(2)), _recorded(capture, lambda: chain(100))
    assert few.num_bytes < 3 * rows.nbytes
    assert many.num_bytes < rows.nbytes + 100 * 100  # the calls alone: it lies where the first one does
    many.replay()
    assert torch.equal(many.outputs[0], chain(100))


def test_a_larger_recording_leaves_earlier_ones_as_they_are() -> None:
    capture, rows, more = CpuGraphCapture(), _rows(0), _rows(1, 500)
    small = _recorded(capture, lambda: _norm(_norm(rows)))
    large = _recorded(capture, lambda: _norm(_norm(more)))
    for recording, input in ((large, more), (small, rows), (large, more)):
        recording.replay()
        assert torch.equal(recording.outputs[0], _norm(_norm(input)))


@pytest.mark.parametrize(
    ("work", "name"),
    [
        (lambda rows: _norm(rows + 1), "aten::add"),
        (lambda rows: _norm(rows.float().bfloat16()), "aten::.*to"),
        (lambda rows: _norm(rows.index_select(0, torch.tensor([0]))), "aten::"),
        (lambda rows: rows.mul_(2), "aten::mul_"),
        (lambda rows: _norm(torch.zeros(3, 64, dtype=torch.bfloat16)), "aten::zero"),
        (lambda rows: _norm(rows * float(rows[0, 0])), "aten::"),
    ],
    ids=["addition", "conversion", "index", "in place", "fill", "value read"],
)
def test_what_torch_computes_is_refused_by_name(work: Callable[[torch.Tensor], torch.Tensor], name: str) -> None:
    capture, rows = CpuGraphCapture(), _rows(0)
    with pytest.raises(CaptureRefused, match=f"torch computes {name}"):
        _recorded(capture, lambda: work(rows))
    recording = _recorded(capture, lambda: _norm(rows))
    recording.replay()
    assert torch.equal(recording.outputs[0], _norm(rows))


def test_an_address_that_a_kernel_gets_as_a_number_is_refused() -> None:
    rows, kernel = _rows(0), Kernel("rms_norm")

    def work() -> torch.Tensor:
        out = torch.empty_like(rows)
        kernel(out.data_ptr(), rows, _WEIGHT, 3, 64, 64, 1e-5, 0.0)
        return _norm(out)

    with pytest.raises(CaptureRefused, match="address"):
        _recorded(CpuGraphCapture(), work)


def test_between_two_pieces_others_may_read_and_write() -> None:
    capture, rows, given = CpuGraphCapture(), _rows(0), torch.zeros(3, 64, dtype=torch.bfloat16)
    with torch.inference_mode():
        capture.begin()
        kept, seen = _norm(rows), _norm(_norm(rows))
        capture.pause([seen])
        given.copy_(seen + 1)
        capture.resume()
        recording = capture.end([norms.add_rms_norm(given, kept, _WEIGHT, 1e-5)[0]])
    rows.copy_(_rows(5))
    recording.replay(0)
    assert torch.equal(seen, _norm(_norm(rows)))
    given.copy_(seen * 3)
    recording.replay(1)
    expected = norms.add_rms_norm(_norm(_norm(rows)) * 3, _norm(rows), _WEIGHT, 1e-5)[0]
    assert torch.equal(recording.outputs[0], expected)


def test_nothing_is_recorded_after_a_cancellation_or_in_between() -> None:
    capture, rows = CpuGraphCapture(), _rows(0)
    capture.begin()
    _norm(rows)
    capture.cancel()
    assert (rows + 1).shape == rows.shape
    recording = _recorded(capture, lambda: _norm(rows))
    assert isinstance(recording, CpuRecording)
    assert len(recording) == 1


def test_what_a_step_computed_on_the_way_is_gone_once_it_is_recorded() -> None:
    capture, rows, seen = CpuGraphCapture(), _rows(0), list[weakref.ref[torch.Tensor]]()

    def work() -> torch.Tensor:
        middle = _norm(rows)
        seen.append(weakref.ref(middle))
        return _norm(middle)

    _recorded(capture, work)
    assert seen[0]() is None


def test_watching_a_step_doesnt_import_torchs_compiler() -> None:
    script = (
        "import sys, torch\n"
        "from corefw_cpu_kernels.torch_watch import TorchWatch\n"
        "with TorchWatch() as watch:\n"
        "    torch.empty(3).view(3, 1)\n"
        "assert len(watch.made) == 1\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
