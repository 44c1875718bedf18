"""Engines in which a tiny Llama's steps are recorded and replayed: tokens are those of an engine that does neither."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from corefw.llm import LLM
from corefw.testing.offline_runs import open_tiny, tokens_of
from corefw.testing.recording import CheapRecorder, RecorderOps
from corefw.testing.registration import registered
from corefw.testing.static_attention import StaticAttention


class CheapOps(RecorderOps):
    """Records when a step is first needed."""

    recorder = CheapRecorder
    captures = []


@contextmanager
def _engine(**settings: Any) -> Iterator[LLM]:
    with ExitStack() as stack:
        stack.enter_context(registered("op_providers", "recorder", CheapOps))
        stack.enter_context(registered("attention_backends", "static", StaticAttention))
        defaults = {"plugins": "recorder,static", "attention_backend": "static", "max_num_seqs": 4}
        yield stack.enter_context(open_tiny(**(defaults | settings)))


@pytest.mark.parametrize("mode", ["full", "full_and_piecewise"])
def test_replayed_steps_give_the_tokens_of_computed_ones(mode: str) -> None:
    with _engine(enforce_eager=True) as llm:
        expected = tokens_of(llm)
    before = len(CheapOps.captures)
    with _engine(graph_mode=mode, max_num_batched_tokens=32, max_graph_capture_size=32) as llm:
        assert tokens_of(llm) == expected
    (capture,) = CheapOps.captures[before:]
    assert capture.made
