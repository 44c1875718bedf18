"""The suites find what is wrong: each of these has one fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from corefw.builtins.platforms.cpu import CpuPlatform
from corefw.interfaces.endpoint import Endpoint
from corefw.interfaces.logits_processor import LogitsProcessor, SampledRequest
from corefw.interfaces.op_provider import OpProvider, OpRequest
from corefw.interfaces.platform import Proposal
from corefw.interfaces.scheduler import QueueOrder, RequestView, VictimChoice
from corefw.interfaces.stat_logger import FinishedRequest, StatLogger
from corefw.models.ops import definitions
from corefw.testing.endpoint_suite import EndpointSuite
from corefw.testing.logits_processor_suite import LogitsProcessorSuite
from corefw.testing.op_provider_suite import OpProviderSuite
from corefw.testing.platform_suite import PlatformSuite
from corefw.testing.scheduler_suite import SchedulingDecisionSuite
from corefw.testing.stat_logger_suite import StatLoggerSuite
from corefw.testing.suite import Suite
from corefw.testing.suite_run import Result, run_suite


class UnknownOption(CpuPlatform):
    name = "unknown_option"

    def propose(self, model: Any, explicit: frozenset[str], *, interactive: bool) -> Sequence[Proposal]:
        return (Proposal("scheduler", "no_such_option", 1, "why not"),)


class WrongProduct(OpProvider):
    name = "wrong_product"

    def supports(self, request: OpRequest) -> str | None:
        return None if request.op == "soft_cap" else "no kernel"

    def kernel(self, request: OpRequest) -> Callable[..., torch.Tensor]:
        return lambda input, cap: definitions.soft_cap(input, cap) * 1.01


class Overwriting(WrongProduct):
    name = "overwriting"

    def kernel(self, request: OpRequest) -> Callable[..., torch.Tensor]:
        return lambda input, cap: input.copy_(definitions.soft_cap(input, cap))


class Forgetful(LogitsProcessor[list[int]]):
    """Counts its calls, so a resumed request begins anew."""

    name = "forgetful"

    def state(self, request: SampledRequest) -> list[int] | None:
        return [0]

    def apply(self, state: list[int], logits_V: torch.Tensor, output_ids: npt.NDArray[np.int32]) -> torch.Tensor:
        state[0] += 1
        logits_V[state[0]] += 100
        return logits_V


class NoKey(QueueOrder):
    name = "no_key"

    def queue_key(self, request: RequestView) -> tuple[float, ...]:
        return (float("nan"),)


class Nobody(VictimChoice):
    name = "nobody"

    def victim(self, running: Sequence[RequestView]) -> int:
        return len(running)


class NeedsTags(StatLogger):
    name = "needs_tags"

    def record_finished(self, request: FinishedRequest) -> None:
        request.tags["team"]


class Crashing(Endpoint):
    name = "crashing"

    def routes(self) -> Sequence[BaseRoute]:
        return [Route("/crash", self._crash, methods=["POST"])]

    async def _crash(self, request: Request) -> Response:
        return PlainTextResponse(str((await request.json())["field"]))


class Open(Crashing):
    name = "open"
    public_paths = frozenset({"/plugins/open/crash"})


@pytest.mark.parametrize(
    ("suite", "plugin", "case"),
    [
        (PlatformSuite, UnknownOption, "its proposals are of options that exist"),
        (OpProviderSuite, WrongProduct, "its kernels compute what the ops mean"),
        (OpProviderSuite, Overwriting, "its kernels leave their inputs alone"),
        (LogitsProcessorSuite, Forgetful, "a resumed request goes on as if nothing had happened"),
        (SchedulingDecisionSuite, NoKey, "its keys are numbers that stay"),
        (SchedulingDecisionSuite, Nobody, "its victims are running"),
        (StatLoggerSuite, NeedsTags, "it takes a request that failed"),
        (EndpointSuite, Crashing, "with the key a bad body is the clients fault"),
        (EndpointSuite, Open, "nothing of it is open to everybody"),
    ],
)
def test_a_fault_is_found_where_it_is(suite: type[Suite], plugin: type, case: str) -> None:
    checked = type(f"Check{plugin.__name__}", (suite,), {"plugin": plugin})
    cases = {found.what: found for found in run_suite(checked, (case, "its version is accepted"))}
    assert cases[case].result is Result.FAILS
    assert cases[case].reason
    assert ".py:" in cases[case].where
    assert cases["its version is accepted"].result is Result.HOLDS
