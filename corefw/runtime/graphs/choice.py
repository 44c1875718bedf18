"""Whether steps are recorded, which, and by whom; asked once, at start, alike on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corefw.interfaces.attention import GraphSupport
from corefw.interfaces.selection import Rejected, Selection
from corefw.runtime.graphs.descriptor import GraphMode
from corefw.runtime.graphs.dispatcher import GraphDispatcher, default_sizes

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.interfaces.attention import AttentionBackend
    from corefw.interfaces.graphs import GraphCapture

__all__ = ["GraphChoice", "choose_graphs"]

_MAX_DEFAULT_SIZE = 512
# By --graph-mode: steps of one token a request, all others.
_MODES = {
    "none": (GraphMode.NONE, GraphMode.NONE),
    "piecewise": (GraphMode.PIECEWISE, GraphMode.PIECEWISE),
    "full": (GraphMode.FULL, GraphMode.FULL),
    "full_decode_only": (GraphMode.FULL, GraphMode.NONE),
    "full_and_piecewise": (GraphMode.FULL, GraphMode.PIECEWISE),
}
_SHOWN = {GraphMode.FULL: "whole", GraphMode.PIECEWISE: "in pieces between attention", GraphMode.NONE: "never"}


@dataclass(frozen=True, slots=True)
class GraphChoice:
    """What was chosen.

    Attributes:
        capture: the recorder.
        dispatcher: which batches are recorded.
    """

    capture: GraphCapture
    dispatcher: GraphDispatcher


def choose_graphs(
    config: EngineConfig,
    capture: GraphCapture | None,
    backend: type[AttentionBackend],
    obstacles: Sequence[tuple[str, frozenset[GraphMode]]] = (),
) -> tuple[GraphChoice | None, Selection]:
    """Take the mode asked for, as far as attention and everything else in the model allows it.

    Args:
        config: the engine's.
        capture: the device's recorder; None: it has none.
        backend: the attention backend.
        obstacles: (what it is, the modes that can't contain it).

    Returns:
        the choice, None where every step is computed; and why.
    """
    reason = _refusal(config, capture)
    if reason is not None or capture is None:
        return None, _none(reason or "")
    wanted = config.compilation.graph_mode
    decode, mixed = _MODES[capture.default_mode if wanted == "auto" else wanted]
    rejected: list[Rejected] = []
    support = backend.capabilities.graph_support
    needed = GraphSupport.ALWAYS if mixed is GraphMode.FULL else GraphSupport.UNIFORM_SINGLE_TOKEN_DECODE
    if GraphMode.FULL in (decode, mixed) and support < needed:
        rejected.append(Rejected("whole", f"attention backend {backend.name} has {support.name.lower()}"))
        mixed = min(mixed, GraphMode.PIECEWISE)
        if support < GraphSupport.UNIFORM_SINGLE_TOKEN_DECODE:
            decode = GraphMode.PIECEWISE
    for what, modes in obstacles:
        decode, mixed = _without(decode, modes), _without(mixed, modes)
        rejected += [Rejected(_SHOWN[mode], what) for mode in sorted(modes, reverse=True)]
    if decode is mixed is GraphMode.NONE:
        return None, Selection("recorded steps", "none", "nothing that was asked for can be", tuple(rejected))
    sizes = _sizes(config, capture, mixed)
    dispatcher = GraphDispatcher(decode=decode, mixed=mixed, sizes=sizes, max_num_seqs=config.scheduler.max_num_seqs)
    why = f"decode {_SHOWN[decode]}, others {_SHOWN[mixed]}; up to {sizes[-1]} tokens" + (
        "" if capture.is_cheap else f", {len(sizes)} sizes"
    )
    return GraphChoice(capture, dispatcher), Selection("recorded steps", capture.name, why, tuple(rejected))


def _refusal(config: EngineConfig, capture: GraphCapture | None) -> str | None:
    """Why nothing at all is recorded."""
    if config.compilation.enforce_eager:
        return "--enforce-eager"
    if config.compilation.graph_mode == "none":
        return "--graph-mode none"
    if capture is None:
        return f"nothing on platform {config.platform} records steps"
    if config.parallel.pipeline_parallel_size > 1:
        return "a pipeline stage hands tensors on between its layers and others'"
    return None


def _none(reason: str) -> Selection:
    return Selection("recorded steps", "none", reason)


def _without(mode: GraphMode, broken: frozenset[GraphMode]) -> GraphMode:
    """The next smaller mode that is possible."""
    while mode in broken:
        mode = GraphMode(mode - 1)
    return mode


def _sizes(config: EngineConfig, capture: GraphCapture, mixed: GraphMode) -> tuple[int, ...]:
    scheduler, compilation = config.scheduler, config.compilation
    bound = min(
        scheduler.max_num_batched_tokens, scheduler.max_num_seqs if mixed is GraphMode.NONE else _MAX_DEFAULT_SIZE
    )
    given = compilation.capture_sizes
    if given is not None:
        return tuple(size for size in given if size <= scheduler.max_num_batched_tokens) or (bound,)
    largest = compilation.max_graph_capture_size or min(_MAX_DEFAULT_SIZE, bound)
    return default_sizes(min(largest, scheduler.max_num_batched_tokens), every=capture.is_cheap)
