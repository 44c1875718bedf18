"""What logits processors are told of a request."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import torch

from corefw.config.engine_config import EngineConfig
from corefw.errors import PluginError
from corefw.interfaces.logits_processor import LogitsProcessor, SampledRequest
from corefw.messages.arrays import Array
from corefw.messages.request import EmbeddingSpan
from corefw.messages.sampling import SamplingParams
from corefw.messages.scheduling import CachedRequests, NewRequest, SchedulerOutput
from corefw.plugin_system.manager import PluginManager
from corefw.plugin_system.report import report
from corefw.runtime.sampling.processors import RequestProcessors, make_processors
from corefw.testing.configs import fake_config
from corefw.testing.pytest_plugin import RegisterPlugin


class Listener(LogitsProcessor[None]):
    """Remembers the prompts that it was told."""

    name: ClassVar[str] = "listener"

    def __init__(self) -> None:
        super().__init__(fake_config(), 10)
        self.prompts: list[list[int]] = []

    def state(self, request: SampledRequest) -> None:
        self.prompts.append(list(request.prompt_ids))

    def apply(self, state: None, logits_V: torch.Tensor, output_ids: npt.NDArray[np.int32]) -> torch.Tensor:
        return logits_V


def test_positions_with_embeddings_have_no_token_id() -> None:
    span = EmbeddingSpan(offset=1, values=Array.from_numpy(np.ones((2, 4), np.float32)))
    request = NewRequest(
        request_id="r", prompt_ids=[7, 0, 0, 0], output_ids=[], params=SamplingParams(), eos_ids=(), block_ids=[[1]],
        num_computed_tokens=0, prompt_embeds=(span,),
    )  # fmt: skip
    scheduled = SchedulerOutput(
        step=1,
        new_requests=[request],
        cached_requests=CachedRequests(request_ids=[], num_computed_tokens=[], num_output_tokens=[], new_block_ids=[]),
        num_scheduled_tokens={"r": 4},
        total_num_scheduled_tokens=4,
        finished_request_ids=[],
        preempted_request_ids=[],
        block_ids_to_zero=[[]],
    )
    listener = Listener()
    RequestProcessors([listener]).update(scheduled)
    assert listener.prompts == [[7, -1, -1, 0]]


class Named(LogitsProcessor[None]):
    """Does nothing, under the name that it was given."""

    name: ClassVar[str] = "named"

    def state(self, request: SampledRequest) -> None:
        del request

    def apply(self, state: None, logits_V: torch.Tensor, output_ids: npt.NDArray[np.int32]) -> torch.Tensor:
        return logits_V


class Unmade(Named):
    """Can't be made."""

    name: ClassVar[str] = "unmade"

    def __init__(self, config: EngineConfig, vocab_size: int) -> None:
        raise KeyError("table")


def with_processors(*names: str) -> EngineConfig:
    config = fake_config()
    return dataclasses.replace(config, model=dataclasses.replace(config.model, logits_processors=names))


def test_those_that_the_configuration_names_are_active(register_plugin: RegisterPlugin) -> None:
    register_plugin("logits_processors", "named", Named)
    plugins = PluginManager.discover(None)
    make_processors(with_processors("named"), plugins, 10)
    states = {row.name: (row.state.value, row.reason) for row in report(plugins)}
    assert states["named"] == ("active", "the value of --logits-processors")


def test_one_that_cannot_be_made_is_named(register_plugin: RegisterPlugin) -> None:
    register_plugin("logits_processors", "unmade", Unmade)
    with pytest.raises(
        PluginError,
        match=r"'unmade' \(logits_processors\) of .* 1.0 failed in Unmade: KeyError: 'table'",
    ):
        make_processors(with_processors("unmade"), PluginManager.discover(None), 10)
