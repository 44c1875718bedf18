from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.models.families import VARIANTS, loop_over, prompt, their_greedy, their_logits, theirs, write_variant
from tests.models.threads import one_thread  # noqa: F401

_MAX_MODEL_LEN = {"phi3, long rope": 64}  # beyond it, the other factors hold


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_greedy_tokens_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    model = theirs(write_variant(tmp_path, variant))
    longest = _MAX_MODEL_LEN.get(variant, 256)
    loop = loop_over(tmp_path, max_model_len=longest)
    ids = prompt(min(90, longest))
    torch.testing.assert_close(loop.step({0: ids})[0], their_logits(model, ids), rtol=0, atol=1e-4)
    ids = prompt(min(70, longest - 32), seed=1)
    assert loop.greedy(1, ids, 32, chunk=13) == their_greedy(model, ids, 32)
