from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.builtins.ops.row_tiles import choose_tiles, matmul_rows
from corefw.builtins.ops.torch_ops import TorchOps
from corefw.models.ops.binder import OpBinder
from corefw.models.ops.schema import op_names

OPS = OpBinder([TorchOps()], device_type="cpu", dtype="float32", batch_invariant=True)
SHAPES = [(576, 960), (576, 576), (576, 3072), (1536, 576), (48, 96), (33, 129), (7, 5), (3, 1)]


def rows_of(count: int, width: int, seed: int) -> torch.Tensor:
    noise = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=noise) * 3


def assert_rows_come_out_alike(run: Callable[[torch.Tensor], tuple[torch.Tensor, ...]], width: int, seed: int) -> None:
    """Each row alone, against all rows at once and against every cut into two."""
    rows = rows_of(23, width, seed)
    alone = [run(rows[i : i + 1]) for i in range(len(rows))]
    for start, stop in ((0, 23), (0, 1), (1, 23), (5, 22), (3, 19), (0, 16)):
        together = run(rows[start:stop])
        for place, row in enumerate(range(start, stop)):
            for left, right in zip(alone[row], together, strict=True):
                assert torch.equal(left[0], right[place])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_linear_gives_a_row_the_same_bits_in_any_company(in_features: int, out_features: int, threads: int) -> None:
    torch.set_num_threads(threads)
    weight, bias = rows_of(out_features, in_features, 1), rows_of(1, out_features, 2)[0]
    linear = OPS.bind("linear", in_features=in_features, out_features=out_features)
    assert_rows_come_out_alike(lambda rows: (linear(rows, weight, bias),), in_features, 3)


def test_the_output_head_gives_a_row_the_same_bits_in_any_company() -> None:
    weight, rows = rows_of(49_152, 576, 1), rows_of(20, 576, 2)
    linear = OPS.bind("linear", in_features=576, out_features=49_152)
    together = linear(rows, weight, None)
    for row in (0, 7, 19):
        assert torch.equal(linear(rows[row : row + 1], weight, None)[0], together[row])


@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_hundreds_of_rows_come_out_as_one_by_one(in_features: int, out_features: int) -> None:
    weight, rows = rows_of(out_features, in_features, 1), rows_of(405, in_features, 2)
    linear = OPS.bind("linear", in_features=in_features, out_features=out_features)
    together = linear(rows, weight, None)
    for row in range(0, 405, 29):
        assert torch.equal(linear(rows[row : row + 1], weight, None)[0], together[row])
    assert torch.equal(torch.cat([linear(part, weight, None) for part in rows.split(100)]), together)
    torch.testing.assert_close(together, (rows.double() @ weight.double().t()).float(), rtol=1e-4, atol=1e-3)


def drawing(rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Parameters that go with what is in a row."""
    share = rows[:, 0].double().sigmoid()
    return share * 2, (share * 9).long(), 1 - share / 2, share / 9, share


@settings(deadline=None, derandomize=True, max_examples=40)
@given(width=st.integers(1, 200), seed=st.integers(0, 1000))
def test_rowwise_ops_give_a_row_the_same_bits_in_any_company(width: int, seed: int) -> None:
    weight = rows_of(1, width, seed + 1)[0]
    cos_sin = rows_of(23, 2 * width, seed + 2)
    runs: dict[str, tuple[int, Callable[[torch.Tensor], Any]]] = {
        "rms_norm": (width, lambda rows: (OPS.bind("rms_norm")(rows, weight, 1e-5),)),
        "add_rms_norm": (width, lambda rows: OPS.bind("add_rms_norm")(rows, rows * 0.3, weight, 1e-5)),
        "rms_norm_plus_one": (width, lambda rows: (OPS.bind("rms_norm_plus_one")(rows, weight, 1e-5),)),
        "add_rms_norm_plus_one": (
            width,
            lambda rows: OPS.bind("add_rms_norm_plus_one")(rows, rows * 0.3, weight, 1e-5),
        ),
        "silu_and_mul": (2 * width, lambda rows: (OPS.bind("silu_and_mul")(rows),)),
        "gelu_tanh_and_mul": (2 * width, lambda rows: (OPS.bind("gelu_tanh_and_mul")(rows),)),
        "soft_cap": (width, lambda rows: (OPS.bind("soft_cap")(rows * 20, 30.0),)),
        "most_likely": (width, lambda rows: OPS.bind("most_likely")(rows, width)),
        "drawn": (width, lambda rows: OPS.bind("drawn")(rows, width, *drawing(rows))),
        "embedding": (width, lambda rows: (OPS.bind("embedding")(rows[:, 0].abs().long(), cos_sin),)),
        "rotary_embedding": (
            2 * width,
            lambda rows: OPS.bind("rotary_embedding")(rows, rows * 2, rows[:, 0].abs().long(), cos_sin, 2 * width),
        ),
    }
    in_blocks = {"quantized_linear", "quantized_embedding"}  # float32 is computed with plain weights
    assert set(runs) | {"linear"} | in_blocks == set(op_names())
    for run_width, run in runs.values():
        assert_rows_come_out_alike(run, run_width, seed)


@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_tanh_and_mul"])
@pytest.mark.parametrize("threads", [1, 2])
def test_wide_activations_do_not_depend_on_how_threads_cut_them(threads: int, name: str) -> None:
    rows = rows_of(301, 2 * 1537, 4)
    torch.set_num_threads(1)
    alone = OPS.bind(name)(rows[150:151])
    torch.set_num_threads(threads)
    assert torch.equal(OPS.bind(name)(rows)[150], alone[0])


def test_a_wide_soft_cap_does_not_depend_on_how_threads_cut_it() -> None:
    rows = rows_of(40, 32_003, 4) * 10
    torch.set_num_threads(1)
    alone = OPS.bind("soft_cap")(rows[17:18], 30.0)
    torch.set_num_threads(2)
    assert torch.equal(OPS.bind("soft_cap")(rows, 30.0)[17], alone[0])


@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_every_tile_size_in_use_has_the_bits_of_the_base(in_features: int, out_features: int) -> None:
    tiles = choose_tiles(in_features, out_features)
    weight, rows = rows_of(out_features, in_features, 8), rows_of(256, in_features, 9)
    expected = matmul_rows(rows, weight, tiles[-1:])
    assert list(tiles) == sorted(tiles, reverse=True)
    for tile in tiles:
        assert torch.equal(matmul_rows(rows, weight, (tile, tiles[-1])), expected)


def test_no_rows_give_no_rows() -> None:
    assert matmul_rows(torch.empty(0, 8), torch.randn(3, 8), (16,)).shape == (0, 3)
