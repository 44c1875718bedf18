"""Conformance suite of logits processors. Shapes: V token ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from corefw.interfaces.logits_processor import LogitsProcessor, SampledRequest
from corefw.messages.sampling import SamplingParams
from corefw.testing.configs import fake_config
from corefw.testing.suite import NotChecked, PluginSuite

__all__ = ["LogitsProcessorSuite"]

_VOCAB_SIZE = 64
_PROMPT = [3, 1, 4, 1, 5]


class LogitsProcessorSuite(PluginSuite):
    """For ``corefw.logits_processors``.

    Attributes:
        extra_args: what a client sends so that the processor works on its request.
    """

    plugin: ClassVar[type[LogitsProcessor[Any]]]
    group = "logits_processors"
    torch_free = False
    extra_args: ClassVar[Mapping[str, Any]] = {}

    def test_it_leaves_the_shape_and_gives_no_nan(self) -> None:
        for logits, changed in self._run(8)[1]:
            assert isinstance(changed, torch.Tensor), f"apply() gave {type(changed).__name__}"
            assert changed.shape == logits.shape, f"apply() made {list(changed.shape)} of {list(logits.shape)}"
            assert changed.dtype == logits.dtype, f"apply() made {changed.dtype} of {logits.dtype}"
            assert not changed.isnan().any(), "apply() gave NaN"
            assert (changed > -torch.inf).any(), "apply() left no token possible"

    def test_a_resumed_request_goes_on_as_if_nothing_had_happened(self) -> None:
        outputs, steps = self._run(8)
        for position in (3, 5):
            resumed = self._resumed(outputs, position, len(steps))
            for (_, kept), again in zip(steps[position:], resumed, strict=True):
                assert torch.equal(kept, again), f"resumed at output {position} it changes the logits otherwise"

    def test_requests_do_not_disturb_each_other(self) -> None:
        processor = self._make()
        mine, other = self._state(processor, []), self._state(processor, [])
        for position in range(4):
            outputs = np.arange(position, dtype=np.int32)
            left = processor.apply(mine, self._logits(position), outputs).clone()
            right = processor.apply(other, self._logits(position), outputs)
            assert torch.equal(left, right), "two equal requests get other logits"

    def test_it_only_reads_the_outputs(self) -> None:
        processor = self._make()
        outputs = np.arange(3, dtype=np.int32)
        outputs.flags.writeable = False
        processor.apply(self._state(processor, [0, 1, 2]), self._logits(3), outputs)
        assert outputs.tolist() == [0, 1, 2]

    def test_what_keeps_the_most_likely_token_keeps_it(self) -> None:
        if self.plugin.changes_argmax:
            return
        for logits, changed in self._run(8)[1]:
            assert int(logits.argmax()) == int(changed.argmax()), "changes_argmax is False, and it changed"

    def _make(self) -> LogitsProcessor[Any]:
        return self.plugin(fake_config(vocab_size=_VOCAB_SIZE), _VOCAB_SIZE)

    def _state(self, processor: LogitsProcessor[Any], outputs: list[int]) -> Any:
        request = SampledRequest(
            request_id="request",
            prompt_ids=_PROMPT,
            output_ids=outputs,
            params=SamplingParams(extra_args=dict(self.extra_args)),
            extra={},
        )
        state = processor.state(request)
        if state is None:
            raise NotChecked("it leaves the request alone; say in extra_args what makes it work")
        return state

    def _run(self, num_tokens: int) -> tuple[list[int], list[tuple[torch.Tensor, torch.Tensor]]]:
        processor = self._make()
        state = self._state(processor, [])
        outputs: list[int] = []
        steps = []
        for position in range(num_tokens):
            logits = self._logits(position)
            changed = processor.apply(state, logits.clone(), np.array(outputs, dtype=np.int32)).clone()
            steps.append((logits, changed))
            outputs.append(int(changed.argmax()))
        return outputs, steps

    def _resumed(self, outputs: list[int], position: int, num_tokens: int) -> list[torch.Tensor]:
        processor = self._make()
        state = self._state(processor, outputs[:position])
        return [
            processor.apply(state, self._logits(at), np.array(outputs[:at], dtype=np.int32)).clone()
            for at in range(position, num_tokens)
        ]

    def _logits(self, position: int) -> torch.Tensor:
        noise = torch.Generator().manual_seed(position)
        logits = torch.randn(_VOCAB_SIZE, generator=noise)
        return logits if self.plugin.changes_argmax else (logits - logits.max()).double()
