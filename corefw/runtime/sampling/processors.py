"""Logits processor plugins: their states, and calling them so that a failure stays with its request."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from corefw.interfaces.logits_processor import LogitsProcessor, SampledRequest
from corefw.interfaces.selection import Selection
from corefw.plugin_system.making import made_by_plugin, whose
from corefw.runtime.sampling.metadata import BoundProcessor

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from corefw.config.engine_config import EngineConfig
    from corefw.messages.scheduling import NewRequest, SchedulerOutput
    from corefw.plugin_system.manager import PluginManager

__all__ = ["ProcessorError", "RequestProcessors", "apply_processor", "make_processors"]

_log = logging.getLogger(__name__)
_SETTING = "--logits-processors"
_MAX_ERROR_CHARS = 200
# What processors see where a prompt has an embedding and no id.
_EMBEDDED = -1


class ProcessorError(Exception):
    """A processor raised, or gave back what isn't a row of logits; the text is fit for the client."""


def make_processors(config: EngineConfig, plugins: PluginManager, vocab_size: int) -> list[LogitsProcessor[Any]]:
    """The processors that the configuration names, in its order.

    Raises:
        PluginError: one isn't there, can't be loaded, or can't be made.
    """
    return [_made(name, config, plugins, vocab_size) for name in config.model.logits_processors]


def _made(name: str, config: EngineConfig, plugins: PluginManager, vocab_size: int) -> LogitsProcessor[Any]:
    kind: type[LogitsProcessor[Any]] = plugins.get("logits_processors", name, setting=_SETTING)
    made = made_by_plugin(whose(plugins, "logits_processors", name), LogitsProcessor, kind, config, vocab_size)
    plugins.record(Selection(f"logits processor {name}", name, f"the value of {_SETTING}"))
    return made


class RequestProcessors:
    """The states of all requests that the worker holds, by request id.

    Args:
        processors: in order of application.
    """

    def __init__(self, processors: Sequence[LogitsProcessor[Any]] = ()) -> None:
        self._processors = tuple(processors)
        self._states: dict[str, list[tuple[LogitsProcessor[Any], Any]]] = {}
        self.failed: dict[str, str] = {}

    def update(self, scheduled: SchedulerOutput) -> None:
        """Forget who left and make the states of who came. ``failed`` says, by request id, where that went wrong."""
        if not self._processors:
            return
        for request_id in (*scheduled.finished_request_ids, *scheduled.preempted_request_ids):
            self._states.pop(request_id, None)
            self.failed.pop(request_id, None)
        for request in scheduled.new_requests:
            self._enter(request)

    @property
    def any_bound(self) -> bool:
        """Whether ``bind`` has anything for any request."""
        return bool(self._states)

    def failed_of(self, request_ids: Iterable[str]) -> dict[str, str]:
        """Those of ``failed`` that are among these."""
        if not self.failed:
            return {}
        return {name: error for name in request_ids if (error := self.failed.get(name)) is not None}

    def bind(self, row: int, request_id: str, output_ids: npt.NDArray[np.int32]) -> Iterable[BoundProcessor]:
        """What is to be applied to a row of the step."""
        for processor, state in self._states.get(request_id, ()):
            seen = output_ids.view()
            seen.flags.writeable = False
            apply = partial(_apply, processor, state, seen)
            yield BoundProcessor(processor.name, row, processor.changes_argmax, apply)

    def _enter(self, request: NewRequest) -> None:
        if request.params.max_tokens == 0:  # nothing of it is sampled
            return
        seen = SampledRequest(
            request_id=request.request_id,
            prompt_ids=_told_prompt(request),
            output_ids=tuple(request.output_ids),
            params=request.params,
            extra=request.extra,
        )
        states = []
        for processor in self._processors:
            try:
                state = processor.state(seen)
            except Exception as error:  # the plugin border
                self.failed[request.request_id] = _told(processor.name, error)
                return
            if state is not None:
                states.append((processor, state))
        if states:
            self._states[request.request_id] = states


def apply_processor(processor: BoundProcessor, logits_V: torch.Tensor) -> None:
    """Change a row in place.

    Raises:
        ProcessorError: the processor failed.
    """
    try:
        changed = processor.apply(logits_V)
    except Exception as error:  # the plugin border
        raise ProcessorError(_told(processor.name, error)) from error
    if not isinstance(changed, torch.Tensor) or changed.shape != logits_V.shape:
        raise ProcessorError(f"logits processor {processor.name} didn't give back a row of {len(logits_V)} logits")
    if changed is not logits_V:
        logits_V.copy_(changed)


def _apply(
    processor: LogitsProcessor[Any], state: Any, output_ids: npt.NDArray[np.int32], logits_V: torch.Tensor
) -> torch.Tensor:
    return processor.apply(state, logits_V, output_ids)


def _told_prompt(request: NewRequest) -> tuple[int, ...]:
    ids = list(request.prompt_ids)
    for span in request.prompt_embeds:
        ids[span.offset : span.stop] = [_EMBEDDED] * (span.stop - span.offset)
    return tuple(ids)


def _told(name: str, error: Exception) -> str:
    _log.error("logits processor %s failed", name, exc_info=error)
    return f"logits processor {name} failed: {type(error).__name__}: {error}"[:_MAX_ERROR_CHARS]
