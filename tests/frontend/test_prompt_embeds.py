"""Embeddings that aren't a prompt of the model are refused with the field; the others stand where they were put."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
import torch

from corefw.errors import RequestError
from corefw.frontend.prompt_embeds import MAX_COPIED_BYTES, PromptEmbeds, check_embeds_params, without_first
from corefw.messages.arrays import Array
from corefw.messages.request import EmbeddingSpan
from corefw.messages.sampling import SamplingParams
from corefw.testing.configs import fake_config
from tests.frontend.embeds_files import BAD, WIDTH, npy

MODEL = PromptEmbeds(is_enabled=True, width=WIDTH, largest=65504.0)
NARROW = PromptEmbeds(is_enabled=True, width=2, largest=65504.0)


def rows(*values: float) -> np.ndarray:
    return np.array([[value, value] for value in values], dtype=np.float32)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_with_the_field(name: str) -> None:
    with pytest.raises(RequestError, match=r"^prompt_embeds\[3\] ") as raised:
        MODEL.decode(encoded(BAD[name]), param="prompt_embeds[3]")
    assert raised.value.param == "prompt_embeds[3]"
    assert len(raised.value.message) < 400


@pytest.mark.parametrize("text", ["", "!", "AAA", "AAAA\nAAAA", "Ünïcode", "=" * 8, encoded(BAD["npy of objects"])[1:]])
def test_text_that_is_no_base64_of_a_file_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="must be base64 of"):
        MODEL.decode(text, param="prompt_embeds")


def test_a_file_is_refused_for_what_is_wrong_with_it() -> None:
    with pytest.raises(RequestError, match="100 dimensions"):
        MODEL.decode(encoded(BAD["safetensors, a hundred dimensions"]), param="prompt_embeds")


def test_a_model_that_takes_none_names_the_flag() -> None:
    reader = PromptEmbeds.of(fake_config())
    for read in (
        lambda: reader.decode("AAAA", param="prompt_embeds"),
        lambda: reader.whole(rows(1)),
        lambda: reader.placed([1], {0: rows(1)}),
    ):
        with pytest.raises(RequestError, match="--enable-prompt-embeds"):
            read()


def test_the_width_is_that_of_the_model() -> None:
    reader = PromptEmbeds.of(fake_config(enable_prompt_embeds=True))
    assert reader.whole(np.ones((3, 16), np.float32)).ids == [0, 0, 0]
    with pytest.raises(RequestError, match=r"of shape \[positions, 16\]"):
        reader.whole(np.ones((3, 15), np.float32))


@pytest.mark.parametrize("value", [70000.0, -70000.0, np.inf, np.nan])
def test_numbers_beyond_the_model_s_arithmetic_are_refused(value: float) -> None:
    with pytest.raises(RequestError, match="finite"):
        NARROW.whole(rows(0.0, value))


def test_a_number_beyond_float32_is_not_finite() -> None:
    with pytest.raises(RequestError, match="finite"):
        NARROW.whole(np.full((1, 2), 1e300))


@pytest.mark.parametrize("make", [
    np.asarray, lambda array: np.asarray(array, np.float64), lambda array: np.asarray(array, np.float16),
    torch.tensor, lambda array: torch.tensor(array).bfloat16().requires_grad_(),
])  # fmt: skip
def test_arrays_and_tensors_of_any_float_are_taken(make: Any) -> None:
    prompt = NARROW.whole(make(rows(1.0, -0.5)))
    np.testing.assert_array_equal(prompt.spans[0].values.to_numpy(), rows(1.0, -0.5))


@pytest.mark.parametrize(
    "value",
    [
        *([[1.0, 2.0]], "text", None, np.ones((1, 2), int), torch.ones(1, 2)[0], np.array(1.0)),
        *(torch.ones(1, 2, dtype=torch.int64), torch.ones(1, 2, dtype=torch.complex64), torch.nn.Linear(2, 2)),
    ],
)
def test_what_is_no_matrix_of_floats_is_refused(value: object) -> None:
    with pytest.raises(RequestError) as raised:
        NARROW.whole(value)
    assert raised.value.param == "prompt_embeds"


def test_embeddings_take_the_place_of_ids() -> None:
    prompt = NARROW.placed([5, 6, 7, 8, 9], {3: rows(3.0), 0: rows(1.0, 2.0)})
    assert prompt.ids == [0, 0, 7, 0, 9]
    assert [(span.offset, span.stop) for span in prompt.spans] == [(0, 2), (3, 4)]


@pytest.mark.parametrize("values", [
    {}, {4: rows(1.0, 2.0)}, {-1: rows(1.0)}, {0: rows(1.0, 2.0), 1: rows(3.0)}, {"0": rows(1.0)}, {True: rows(1.0)},
], ids=["none", "behind the end", "before the start", "twice", "a text", "a boolean"])  # fmt: skip
def test_positions_that_do_not_fit_are_refused(values: Any) -> None:
    with pytest.raises(RequestError) as raised:
        NARROW.placed([5, 6, 7, 8, 9], values)
    assert (raised.value.param or "").startswith("prompt_embeds")


def test_a_file_becomes_a_whole_prompt() -> None:
    prompt = NARROW.decode(encoded(npy(rows(1.0, 2.0, 3.0))), param="prompt_embeds")
    assert prompt.ids == [0, 0, 0]
    np.testing.assert_array_equal(prompt.spans[0].values.to_numpy(), rows(1.0, 2.0, 3.0))


@pytest.mark.parametrize(("dropped", "expected"), [
    (0, [(1, [1.0, 2.0]), (4, [3.0])]), (1, [(0, [1.0, 2.0]), (3, [3.0])]), (2, [(0, [2.0]), (2, [3.0])]),
    (3, [(1, [3.0])]), (4, [(0, [3.0])]), (5, []),
])  # fmt: skip
def test_a_prompt_cut_at_its_beginning_keeps_the_embeddings_of_what_is_left(
    dropped: int, expected: list[tuple[int, list[float]]]
) -> None:
    spans = NARROW.placed([9] * 6, {1: rows(1.0, 2.0), 4: rows(3.0)}).spans
    left = [(span.offset, span.values.to_numpy()[:, 0].tolist()) for span in without_first(spans, dropped)]
    assert left == expected


def test_log_probabilities_of_a_prompt_without_ids_are_refused() -> None:
    spans = NARROW.whole(rows(1.0)).spans
    with pytest.raises(RequestError) as raised:
        check_embeds_params(SamplingParams(prompt_logprobs=0), spans)
    assert raised.value.param == "prompt_logprobs"


def test_memory_for_copies_is_bounded() -> None:
    class Huge(Array):
        def __init__(self) -> None:
            super().__init__("float32", (1, 1), memoryview(b"\0" * 2**20))

    spans = [EmbeddingSpan(offset=0, values=Huge())]
    fitting = MAX_COPIED_BYTES // 2**20 + 1
    check_embeds_params(SamplingParams(n=fitting), spans)
    with pytest.raises(RequestError) as raised:
        check_embeds_params(SamplingParams(n=fitting + 1), spans)
    assert raised.value.param == "n"
