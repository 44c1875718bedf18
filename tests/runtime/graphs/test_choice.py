"""What is recorded is as much as was asked for and the model allows; the rest is named with its reason."""

from __future__ import annotations

from typing import Any

import pytest

from corefw.builtins.attention.torch_attention import TorchAttention
from corefw.config.engine_config import CompilationConfig
from corefw.errors import ConfigError
from corefw.interfaces.attention import AttentionBackend
from corefw.runtime.graphs.choice import choose_graphs
from corefw.runtime.graphs.descriptor import GraphMode
from corefw.testing.configs import fake_config
from corefw.testing.recording import CheapRecorder, TorchRecorder
from corefw.testing.static_attention import DecodeStaticAttention, StaticAttention

NONE, PIECEWISE, FULL = GraphMode


def _modes(
    backend: type[AttentionBackend] = StaticAttention, obstacles: Any = (), **settings: Any
) -> tuple[GraphMode, GraphMode] | str:
    choice, selection = choose_graphs(fake_config(**settings), TorchRecorder(), backend, obstacles)
    if choice is None:
        assert selection.chosen == "none"
        return selection.why
    return choice.dispatcher.decode, choice.dispatcher.mixed


@pytest.mark.parametrize(
    ("backend", "mode", "expected"),
    [
        (StaticAttention, "auto", (FULL, PIECEWISE)),
        (StaticAttention, "full", (FULL, FULL)),
        (StaticAttention, "full_decode_only", (FULL, NONE)),
        (StaticAttention, "piecewise", (PIECEWISE, PIECEWISE)),
        (DecodeStaticAttention, "full", (FULL, PIECEWISE)),
        (DecodeStaticAttention, "full_decode_only", (FULL, NONE)),
        (TorchAttention, "full", (PIECEWISE, PIECEWISE)),
        (TorchAttention, "full_and_piecewise", (PIECEWISE, PIECEWISE)),
        (TorchAttention, "full_decode_only", (PIECEWISE, NONE)),
    ],
)
def test_what_attention_cannot_do_becomes_the_next_smaller_mode(
    backend: type[AttentionBackend], mode: str, expected: tuple[GraphMode, GraphMode]
) -> None:
    assert _modes(backend, graph_mode=mode) == expected


def test_what_breaks_a_kind_of_graph_leaves_the_others() -> None:
    assert _modes(obstacles=[("a tap", frozenset({FULL}))]) == (PIECEWISE, PIECEWISE)
    assert _modes(obstacles=[("a tap", frozenset({PIECEWISE}))]) == (FULL, NONE)
    why = _modes(obstacles=[("a tap", frozenset({FULL})), ("ranks", frozenset({PIECEWISE}))])
    assert isinstance(why, str)
    assert "a tap" in why
    assert "ranks" in why


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"enforce_eager": True}, "--enforce-eager"),
        ({"graph_mode": "none"}, "--graph-mode none"),
        ({"pipeline_parallel_size": 2}, "pipeline stage"),
    ],
)
def test_nothing_is_recorded_where_it_was_not_wanted_or_cannot_be(settings: dict[str, Any], reason: str) -> None:
    why = _modes(**settings)
    assert isinstance(why, str)
    assert reason in why


def test_a_device_without_a_recorder_says_so() -> None:
    choice, selection = choose_graphs(fake_config(), None, StaticAttention)
    assert choice is None
    assert "nothing on platform cpu records steps" in str(selection)


def test_sizes_end_where_batches_do() -> None:
    def sizes(capture: TorchRecorder, **settings: Any) -> list[int]:
        config = fake_config(max_num_seqs=16, max_num_batched_tokens=64, **settings)
        choice, _ = choose_graphs(config, capture, StaticAttention)
        assert choice is not None
        return list(choice.dispatcher.sizes)

    assert sizes(CheapRecorder(), graph_mode="full_decode_only") == list(range(1, 17))
    assert sizes(TorchRecorder(), graph_mode="full_decode_only") == [1, 2, 4, 8, 16]
    assert sizes(TorchRecorder())[-1] == 64
    assert sizes(TorchRecorder(), graph_capture_sizes="8, 3,3,900") == [3, 8]
    assert sizes(TorchRecorder(), max_graph_capture_size=5) == [1, 2, 4, 5]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"graph_capture_sizes": "1,two"}, "--graph-capture-sizes takes numbers"),
        ({"graph_capture_sizes": "0"}, "--graph-capture-sizes takes numbers"),
        ({"graph_capture_sizes": "1,2", "max_graph_capture_size": 4}, "are two"),
        ({"enforce_eager": True, "graph_mode": "full"}, "--enforce-eager replays nothing"),
        ({"graph_mode": "some"}, "--graph-mode"),
    ],
)
def test_settings_that_contradict_or_mean_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CompilationConfig(**settings)
