"""What plugins are shown of a worker's steps, over the real runner and a tiny model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from corefw.interfaces.hooks.lifecycle import WorkerObserver, WorkerRequest, WorkerStep
from corefw.interfaces.hooks.model import ModelTaps
from corefw.llm import LLM, SamplingParams
from corefw.models.taps import Tap
from corefw.plugin_system.contributions import MAX_FAILURES, Contribution
from corefw.plugin_system.observers import ObserverCalls
from corefw.runtime.model_runner.step_observers import StepObservers, Watcher
from corefw.testing.tiny_models import write_tiny_llama
from tests.sample_plugins.install import write_metadata

PROMPT = list(range(30, 50))
POINTS = ("layers.1.residual", "layers.1.qkv", "lm_head.input", "logits")


PLUGIN = f"""
from corefw.interfaces.hooks.model import ModelTaps
from corefw.sdk.plugins import hookimpl

class Taps(ModelTaps):
    points = {POINTS!r}

@hookimpl
def corefw_model_taps(config):
    return Taps()
"""


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A model with every kind of point built in, and steps of 8 tokens."""
    folder = tmp_path_factory.mktemp("tiny")
    site = tmp_path_factory.mktemp("site")
    (site / "every_point.py").write_text(PLUGIN, encoding="utf-8")
    write_metadata(site, "my-points", "1.0", {"corefw.general_plugins": {"every_point": "every_point"}})
    settings: dict[str, Any] = {"max_num_batched_tokens": 8, "enable_prefix_caching": False, "plugins": "every_point"}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        with LLM(str(write_tiny_llama(folder)), dtype="float32", kv_cache_memory=2**24, **settings) as opened:
            yield opened


def observe(llm: LLM, *observers: WorkerObserver[Any], points: Sequence[str] = ()) -> None:
    """Let the worker's steps be watched by these, in place of those before."""
    worker = llm.engine.core._executor._worker()  # type: ignore[attr-defined]
    watchers = [
        Watcher(ObserverCalls(Contribution(f"plugin{i}", "my-dist", "test", each), type(each).__mro__[1]))
        for i, each in enumerate(observers)
    ]
    worker._runner.observers = StepObservers(watchers)
    taps: dict[str, Tap] = worker._model.taps
    for point, tap in taps.items():
        tap.observers = [
            lambda *tensors, watcher=watcher, point=point: watcher.show(point, *tensors)
            for watcher in watchers
            if point in points
        ]


def generate(llm: LLM, *prompts: list[int], **params: Any) -> list[Any]:
    return llm.generate(
        list(prompts), SamplingParams(**{"temperature": 0.0, "max_tokens": 3, "ignore_eos": True, **params})
    )


class Shapes(ModelTaps[None]):
    def __init__(self) -> None:
        self.seen: list[tuple[str, int, list[tuple[int, ...]]]] = []
        self.rows: list[tuple[int, int, int, int | None]] = []

    def step(self, step: WorkerStep[None]) -> None:
        self.rows += [(row.start, row.stop, row.first_position, row.logits_row) for row in step.rows]

    def show(self, step: WorkerStep[None], point: str, *tensors: torch.Tensor) -> None:
        self.seen.append((point, len(step.rows), [tuple(tensor.shape) for tensor in tensors]))

    def sampled(self, step: WorkerStep[None], token_ids: Sequence[Sequence[int]]) -> None:
        for row in step.rows:
            step.answer(row, {"steps": [step.number]})


def test_points_are_shown_with_the_rows_of_the_step_and_news_wait_for_a_token(llm: LLM) -> None:
    shapes = Shapes()
    observe(llm, shapes, points=POINTS)
    (result,) = generate(llm, PROMPT, max_tokens=2)
    assert shapes.rows == [(0, 8, 0, None), (0, 8, 8, None), (0, 4, 16, 0), (0, 1, 20, 0)]
    assert [seen for seen in shapes.seen if seen[0] == "layers.1.residual"] == [
        ("layers.1.residual", 1, [(num, 48)]) for num in (8, 8, 4, 1)
    ]
    assert [seen[2] for seen in shapes.seen if seen[0] == "layers.1.qkv"][-1] == [(1, 48), (1, 16), (1, 16)]
    assert [seen[2] for seen in shapes.seen if seen[0] in ("lm_head.input", "logits")] == [[(1, 48)], [(1, 259)]] * 2
    first, *_, last = result.outputs[0].extensions["plugin0"]["steps"]
    assert last - first == 3, "what was said while the prompt was computed comes with the first token"


def test_a_prompt_that_is_scored_is_not_shown(llm: LLM) -> None:
    shapes = Shapes()
    observe(llm, shapes, points=("logits",))
    generate(llm, PROMPT[:6], prompt_logprobs=1, max_tokens=1)
    assert [seen[2] for seen in shapes.seen] == [[(1, 259)]]


class Forcing(ModelTaps[None]):
    """Changes logits so that one token wins."""

    def show(self, step: WorkerStep[None], point: str, *tensors: torch.Tensor) -> torch.Tensor:
        changed = tensors[0].clone()
        changed[:, 77] = 1e4
        return changed


class Wrong(ModelTaps[None]):
    num_calls = 0

    def show(self, step: WorkerStep[None], point: str, *tensors: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        return tensors[0][:, :-1]


def test_an_editor_changes_what_follows(llm: LLM) -> None:
    observe(llm, Forcing(), points=("logits",))
    assert generate(llm, PROMPT)[0].outputs[0].token_ids == [77, 77, 77]


def test_an_editor_that_returns_something_else_changes_nothing_and_is_quarantined(llm: LLM) -> None:
    observe(llm, Shapes(), points=())
    (plain,) = generate(llm, PROMPT, max_tokens=6)
    wrong = Wrong()
    observe(llm, wrong, points=("lm_head.input",))
    (result,) = generate(llm, PROMPT, max_tokens=6)
    assert result.outputs[0].token_ids == plain.outputs[0].token_ids
    assert wrong.num_calls == MAX_FAILURES


class Contexts(WorkerObserver[list[str]]):
    def __init__(self) -> None:
        self.left: list[tuple[str, int]] = []

    def make_context(self, request: WorkerRequest) -> list[str]:
        if len(request.prompt_ids) == 1:
            raise ValueError("told to fail")
        return []

    def step(self, step: WorkerStep[list[str]]) -> None:
        for row in step.rows:
            assert row.context is not None
            row.context.append(row.request_id)

    def gone(self, request_id: str, context: list[str] | None) -> None:
        assert context is not None
        assert set(context) == {request_id}
        self.left.append((request_id, len(context)))


def test_a_request_has_its_context_until_it_is_gone_and_one_without_is_not_shown(llm: LLM) -> None:
    contexts = Contexts()
    observe(llm, contexts)
    results = generate(llm, PROMPT[:4], [60], max_tokens=3)
    assert [len(result.outputs[0].token_ids) for result in results] == [3, 3]
    assert [num_steps for _, num_steps in contexts.left] == [3]


class Unsendable(WorkerObserver[None]):
    def sampled(self, step: WorkerStep[None], token_ids: Sequence[Sequence[int]]) -> None:
        step.answer(step.rows[0], {"tensor": torch.zeros(1)})


def test_an_answer_that_is_not_plain_stays_with_its_plugin(llm: LLM) -> None:
    observe(llm, Unsendable(), Shapes())
    (result,) = generate(llm, PROMPT)
    assert set(result.outputs[0].extensions) == {"plugin1"}
