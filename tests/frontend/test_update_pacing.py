from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.frontend.output_processor import GenerationUpdate
from corefw.frontend.renderer import Renderer
from corefw.frontend.text_engine import TextEngine
from corefw.frontend.update_pacing import UpdatePacing
from corefw.messages.outputs import FinishReason
from corefw.messages.sampling import RequestOutputKind, SamplingParams
from corefw.testing.scripted_engine import ScriptedEngine


def _update(ids: list[int], last: bool) -> GenerationUpdate:
    return GenerationUpdate(
        index=0,
        text="".join(map(chr, ids)),
        token_ids=ids,
        logprobs=None,
        finish_reason=FinishReason.LENGTH if last else None,
        stop_reason=None,
        num_prompt_tokens=1,
        num_cached_tokens=0,
        extra={},
    )


def _play(kind: RequestOutputKind, interval: int, sizes: list[int]) -> list[GenerationUpdate]:
    pacing = UpdatePacing(kind, interval)
    pieces = [[97 + i] * size for i, size in enumerate(sizes)]
    updates = [_update(piece, i == len(pieces) - 1) for i, piece in enumerate(pieces)]
    return [due for update in updates if (due := pacing.take(update)) is not None]


@given(interval=st.integers(1, 7), sizes=st.lists(st.integers(0, 4), min_size=1, max_size=12))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_every_kind_tells_the_same_output_with_one_end(interval: int, sizes: list[int]) -> None:
    whole = [97 + i for i, size in enumerate(sizes) for _ in range(size)]
    delta = _play(RequestOutputKind.DELTA, interval, sizes)
    assert [i for update in delta for i in update.token_ids] == whole
    assert "".join(update.text for update in delta) == "".join(map(chr, whole))
    cumulative = _play(RequestOutputKind.CUMULATIVE, interval, sizes)
    final = _play(RequestOutputKind.FINAL_ONLY, interval, sizes)
    assert cumulative[-1] == final[0]
    assert final[0].token_ids == whole
    assert len(final) == 1
    for updates in (delta, cumulative, final):
        assert [update.finish_reason is not None for update in updates] == [False] * (len(updates) - 1) + [True]
    lengths = [len(update.token_ids) for update in cumulative]
    assert lengths == sorted(lengths)


def test_the_first_piece_goes_out_at_once_and_then_one_every_interval() -> None:
    pieces = _play(RequestOutputKind.DELTA, 4, [1] * 11)
    assert [len(update.token_ids) for update in pieces] == [1, 4, 4, 2]


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (RequestOutputKind.DELTA, ["a", "bc", "d"]),
        (RequestOutputKind.CUMULATIVE, ["a", "abc", "abcd"]),
        (RequestOutputKind.FINAL_ONLY, ["abcd"]),
    ],
)
async def test_the_text_engine_paces_what_it_gives(
    small_renderer: Renderer, kind: RequestOutputKind, texts: list[str]
) -> None:
    engine = ScriptedEngine(small_renderer.tokenizer.encode("abcd"))
    params = SamplingParams(output_kind=kind, max_tokens=4)
    found = [update async for update in TextEngine(engine, small_renderer, stream_interval=2).generate([5], params)]
    assert [update.text for update in found] == texts
    assert found[-1].finish_reason is FinishReason.LENGTH


def test_what_plugins_sent_is_joined_with_the_updates() -> None:
    pacing = UpdatePacing(RequestOutputKind.FINAL_ONLY)
    updates = [dataclasses.replace(_update([97 + i], i == 2), extra={"mine": {"states": [i]}}) for i in range(3)]
    (last,) = [due for update in updates if (due := pacing.take(update)) is not None]
    assert last.extra == {"mine": {"states": [0, 1, 2]}}
