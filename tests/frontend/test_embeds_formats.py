"""Bytes of a file become floats exactly, or are refused; nothing in them is ever run."""

from __future__ import annotations

import io
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.frontend.embeds_formats import UnreadableError, read_floats
from tests.frontend.embeds_files import npy, safetensors, torch_save, zip_directory

TENSOR = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def check(data: bytes, expected: torch.Tensor) -> None:
    found = read_floats(data)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected.float().numpy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_files_are_read_exactly(dtype: torch.dtype) -> None:
    tensor = TENSOR.to(dtype)
    check(torch_save(tensor), tensor)
    check(torch_save(tensor[2:4]), tensor[2:4])
    check(torch_save(tensor[:1]), tensor[:1])
    check(torch_save((tensor.clone().requires_grad_() * 1).to(dtype)), tensor)


@pytest.mark.parametrize("dtype", DTYPES)
def test_safetensors_files_are_read_exactly(dtype: torch.dtype) -> None:
    check(safetensors(anything=TENSOR.to(dtype)), TENSOR.to(dtype))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_npy_files_are_read_exactly(dtype: type, version: tuple[int, int]) -> None:
    array = TENSOR.numpy().astype(dtype)
    for form in (array, np.asfortranarray(array), array[:1]):
        file = io.BytesIO()
        np.lib.format.write_array(file, form, version=version)
        np.testing.assert_array_equal(read_floats(file.getvalue()), form.astype(np.float32))


def test_the_largest_and_smallest_numbers_keep_their_bits() -> None:
    edges = torch.tensor([[65504.0, 6e-8, -0.0, 1.0]])
    check(torch_save(edges.half()), edges.half())
    assert np.signbit(read_floats(npy(edges.numpy()))[0, 2])


GOOD = (torch_save(TENSOR), safetensors(x=TENSOR), npy(TENSOR.numpy()))


@settings(deadline=None, derandomize=True, max_examples=400)
@given(st.sampled_from(GOOD), st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4), st.data())
def test_damaged_files_are_read_or_refused_and_nothing_else(
    good: bytes, changes: list[tuple[int, int]], data: st.DataObject
) -> None:
    damaged = bytearray(good)
    for place, value in changes:
        damaged[place % len(damaged)] = value
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))] if data.draw(st.booleans()) else damaged)
    found = None
    with suppress(UnreadableError):
        found = read_floats(cut)
    assert found is None or found.dtype == np.float32


def test_an_archive_s_directory_takes_no_memory_before_it_is_refused() -> None:
    data = zip_directory(num_entries=50_000)
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableError, match=r"isn't what torch\.save makes"):
            read_floats(data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
