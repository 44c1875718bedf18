"""The forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

import torch

from corefw.models.layers.forward_context import ForwardContext, set_forward_context
from corefw.runtime.model_runner.input_preparation import StepInputs

if TYPE_CHECKING:
    from corefw.interfaces.attention import AttentionLayerSpec
    from corefw.interfaces.kv_cache import KVCacheSpec
    from corefw.runtime.model_runner.prompt_embeds import PlacedEmbeds

__all__ = [
    "AttentionLayer",
    "ChoosingModel",
    "Chosen",
    "ExecutedForward",
    "Execution",
    "Forward",
    "RunnableModel",
    "StageTensors",
    "dummy_run",
]

StageTensors = dict[str, torch.Tensor]
Chosen = tuple[torch.Tensor, torch.Tensor]
"""Largest logits and whose they are, of the requests that get a token."""


class AttentionLayer(Protocol):
    """What the runtime needs of an attention layer."""

    spec: AttentionLayerSpec

    def kv_cache_spec(self, block_size: int) -> KVCacheSpec: ...
    def bind_pages(self, pages: torch.Tensor) -> None: ...


class RunnableModel(Protocol):
    """What the runtime needs of a model. E hidden elements, V vocabulary rows."""

    @property
    def attention_layers(self) -> Sequence[AttentionLayer]: ...
    def __call__(self, input_ids_T: torch.Tensor, positions_T: torch.Tensor) -> torch.Tensor: ...
    def compute_logits(self, hidden_RE: torch.Tensor) -> torch.Tensor: ...


class _StageModel(Protocol):
    """A model that declares ``has_stages``: the first stage gets no tensors, the last one gives one."""

    def __call__(
        self, input_ids_T: torch.Tensor, positions_T: torch.Tensor, *, received: StageTensors | None
    ) -> torch.Tensor | StageTensors: ...
    def empty_received(self, num_tokens: int) -> StageTensors | None: ...


class ChoosingModel(Protocol):
    """A model that declares ``can_choose``."""

    def choose(self, hidden_RE: torch.Tensor, num_ids: int) -> Chosen: ...


class _EmbeddableModel(Protocol):
    """A model that declares ``accepts_embeds``."""

    def embed(self, input_ids_T: torch.Tensor) -> torch.Tensor: ...
    def __call__(
        self, input_ids_T: torch.Tensor, positions_T: torch.Tensor, embeds_TE: torch.Tensor
    ) -> torch.Tensor: ...


class Forward:
    """A forward pass, computed or replayed; logits can be had of any of its tokens until the next one.

    Attributes:
        given: for the next stage; None at the last one.
        hidden: [T, E]; empty where there is a next stage.
        logits: [S, V] of the requests that get a token; None where nobody does, where there is a next stage, or where
            the tokens are chosen.
        chosen: the most likely tokens, where they were asked for in place of logits.
    """

    hidden: torch.Tensor

    def __init__(self, model: RunnableModel, context: ForwardContext) -> None:
        self._model = model
        self._context = context
        self.given: StageTensors | None = None
        self.logits: torch.Tensor | None = None
        self.chosen: Chosen | None = None

    def compute_logits(self, hidden_RE: torch.Tensor) -> torch.Tensor:
        """[R, E] → [R, V]."""
        with torch.inference_mode(), set_forward_context(self._context):
            return self._model.compute_logits(hidden_RE)


class ExecutedForward(Forward):
    """A forward pass that was run."""

    def __init__(
        self,
        model: RunnableModel,
        context: ForwardContext,
        inputs: StepInputs,
        embeds: Sequence[PlacedEmbeds],
        received: StageTensors | None,
        num_ids: int | None = None,
    ) -> None:
        super().__init__(model, context)
        with torch.inference_mode(), set_forward_context(context):
            out = _run(model, inputs, embeds, received)
        if isinstance(out, dict):
            self.given, self.hidden = out, torch.empty(0)
            return
        self.hidden = out
        if not len(inputs.sampled):
            return
        if num_ids is None:
            self.logits = self.compute_logits(self.hidden[inputs.logits_indices])
            return
        with torch.inference_mode(), set_forward_context(context):
            self.chosen = cast("ChoosingModel", model).choose(self.hidden[inputs.logits_indices], num_ids)


class Execution:
    """Runs the model on a step's inputs.

    Args:
        model: is run.
        num_ids: tokens that may be chosen.

    Attributes:
        num_choosable: of so many ids the model can choose the most likely one itself; None where it can't.
    """

    def __init__(self, model: RunnableModel, num_ids: int | None = None) -> None:
        self._model = model
        self.num_choosable = num_ids if getattr(model, "can_choose", False) else None

    def run(
        self,
        inputs: StepInputs,
        context: ForwardContext,
        embeds: Sequence[PlacedEmbeds] = (),
        received: StageTensors | None = None,
        *,
        is_greedy: bool = False,
    ) -> ExecutedForward:
        """Run the model; ``embeds`` take the place of what it has for the ids of those tokens.

        ``received`` is what the stage before gave, at all stages but the first. Where ``is_greedy``, the most likely
        tokens are all that is wanted.
        """
        num_ids = self.num_choosable if is_greedy else None
        return ExecutedForward(self._model, context, inputs, embeds, received, num_ids)


def _run(
    model: RunnableModel, inputs: StepInputs, embeds: Sequence[PlacedEmbeds], received: StageTensors | None
) -> torch.Tensor | StageTensors:
    if received is not None:
        return cast("_StageModel", model)(inputs.input_ids, inputs.positions, received=received)
    return _with_embeds(model, inputs, embeds) if embeds else model(inputs.input_ids, inputs.positions)


def _with_embeds(model: RunnableModel, inputs: StepInputs, embeds: Sequence[PlacedEmbeds]) -> torch.Tensor:
    embeddable = cast("_EmbeddableModel", model)
    hidden_TE = embeddable.embed(inputs.input_ids)
    for placed in embeds:
        hidden_TE[placed.start : placed.start + len(placed.values)] = placed.values.to(hidden_TE.dtype)
    return embeddable(inputs.input_ids, inputs.positions, hidden_TE)


def dummy_run(
    model: RunnableModel, device: torch.device, *, num_tokens: int, num_rows: int, max_position: int
) -> torch.Tensor | None:
    """The largest step there can be, without a cache, to measure memory.

    Returns:
        its logits [num_rows, V]; None where a later stage computes them.
    """
    with torch.inference_mode(), set_forward_context(ForwardContext(None, {})):
        input_ids = torch.zeros(num_tokens, dtype=torch.int64, device=device)
        positions = torch.arange(num_tokens, device=device) % max_position
        hidden_TE: torch.Tensor | StageTensors
        received = (
            cast("_StageModel", model).empty_received(num_tokens) if getattr(model, "has_stages", False) else None
        )
        if received is not None:
            hidden_TE = cast("_StageModel", model)(input_ids, positions, received=received)
        else:
            hidden_TE = model(input_ids, positions)
        if isinstance(hidden_TE, dict):
            return None
        rows = torch.arange(num_rows, device=device) % num_tokens
        return model.compute_logits(hidden_TE[rows])
