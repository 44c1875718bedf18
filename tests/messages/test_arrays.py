from __future__ import annotations

import numpy as np
import pytest

from corefw.errors import EngineError
from corefw.messages.arrays import Array


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int64", "uint8"])
def test_an_array_keeps_its_elements_and_shape(dtype: str) -> None:
    original = np.arange(12).reshape(3, 4).astype(dtype)
    back = Array.from_numpy(original).to_numpy()
    assert back.dtype == original.dtype
    np.testing.assert_array_equal(back, original)


def test_a_transposed_array_is_made_contiguous() -> None:
    original = np.arange(6, dtype="int32").reshape(2, 3).T
    np.testing.assert_array_equal(Array.from_numpy(original).to_numpy(), original)


def test_a_buffer_of_the_wrong_length_is_refused_with_dtype_and_shape() -> None:
    with pytest.raises(EngineError, match=r"float32\[2, 2\] came with 15 bytes"):
        Array("float32", (2, 2), b"\0" * 15).to_numpy()


def test_arrays_are_equal_by_value_whatever_holds_the_buffer() -> None:
    array = Array("int32", (2,), b"\1\0\0\0\2\0\0\0")
    same = Array("int32", (2,), memoryview(b"\1\0\0\0\2\0\0\0"))
    assert array == same
    assert hash(array) == hash(same)
    assert array != Array("int32", (2, 1), array.data)
    assert array != Array("float32", (2,), array.data)
    assert array != Array("int32", (2,), b"\1\0\0\0\3\0\0\0")


def test_rows_are_the_bytes_of_a_part() -> None:
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert bytes(Array.from_numpy(array).rows(1, 3)) == array[1:3].tobytes()
    assert bytes(Array.from_numpy(array).rows(2, 2)) == b""
