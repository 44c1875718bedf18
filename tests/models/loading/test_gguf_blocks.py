from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from corefw.models.loading.gguf_blocks import DECODERS, dequantise
from corefw.models.loading.gguf_types import TYPES_BY_CODE, TensorType

TYPES = {kind.name: kind for kind in TYPES_BY_CODE.values()}
# Where the float16 scales of a block lie, in bytes.
SCALES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),  # any byte is an exponent
    "TQ1_0": (52,),
    "TQ2_0": (64,),
}


def random_blocks(kind: TensorType, num_blocks: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Random bytes, but scales between -4 and 4."""
    rng = np.random.default_rng(seed)
    if not kind.is_block:
        values = rng.standard_normal(num_blocks, dtype=np.float32)
        if kind.name == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype("<f4" if kind.name == "F32" else "<f2").view(np.uint8)
    blocks = rng.integers(0, 256, (num_blocks, kind.block_bytes), dtype=np.uint8)
    for at in SCALES[kind.name]:
        blocks[:, at : at + 2] = rng.uniform(-4, 4, (num_blocks, 1)).astype("<f2").view(np.uint8)
    return blocks


def test_every_readable_type_has_a_decoder_and_the_size_that_the_reference_gives() -> None:
    assert set(DECODERS) == {*TYPES, "W8A8"}  # which is of no file
    for code, kind in TYPES_BY_CODE.items():
        reference = gguf.GGMLQuantizationType(code)
        assert reference.name == kind.name
        assert gguf.GGML_QUANT_SIZES[reference] == (kind.block_elements, kind.block_bytes)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("num_blocks", [1, 3, 1025, 40000])
def test_blocks_decode_to_the_bits_of_the_reference(name: str, num_blocks: int) -> None:
    kind = TYPES[name]
    num_blocks = max(1, num_blocks // (8 if kind.block_elements == 256 else 1))
    raw = random_blocks(kind, num_blocks)
    with np.errstate(over="ignore"):  # the largest exponents of MXFP4
        expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name]).reshape(-1)
    decoded = dequantise(raw, kind)
    assert decoded.dtype == np.float32
    assert np.array_equal(decoded.view(np.uint32), expected.astype(np.float32).view(np.uint32))


def test_the_result_is_written_where_the_caller_says() -> None:
    kind = TYPES["Q4_1"]
    raw = random_blocks(kind, 100)
    out = np.full(3200, np.nan, np.float32)
    assert np.shares_memory(dequantise(raw, kind, out), out)
    assert np.array_equal(out, dequantise(raw, kind))


def test_a_view_of_rows_that_do_not_follow_one_another_is_decoded_right() -> None:
    kind = TYPES["Q8_0"]
    raw = random_blocks(kind, 64)
    assert np.array_equal(dequantise(raw[::2], kind), dequantise(raw, kind).reshape(64, 32)[::2].reshape(-1))


def test_a_damaged_scale_gives_nan_without_a_warning() -> None:
    kind = TYPES["Q4_1"]
    raw = np.full((4, kind.block_bytes), 0xFF, np.uint8)
    assert np.isnan(dequantise(raw, kind)).all()
