"""What goes between front end and core besides requests and outputs: kinds of messages, calls, the dead signal."""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

__all__ = ["OutputKind", "RequestKind", "UtilityCall", "WaveOrder", "WaveReport"]


class RequestKind(bytes, Enum):
    """First frame of a message to the core.

    Attributes:
        ADD: an ``EngineCoreRequest`` follows.
        ABORT: a list of request ids follows.
        UTILITY: a ``UtilityCall`` follows.
        SHUTDOWN: nothing follows; the core stops after the running step.
        START_WAVE: a ``WaveOrder`` follows.
    """

    ADD = b"\x00"
    ABORT = b"\x01"
    UTILITY = b"\x02"
    SHUTDOWN = b"\x03"
    START_WAVE = b"\x04"


class OutputKind(bytes, Enum):
    """First frame of a message from the core.

    Attributes:
        HELLO: nothing follows; sent once on each socket, so that the front end knows that they are connected.
        OUTPUTS: ``EngineCoreOutputs`` follow.
        DEAD: the reason follows, as a string; the core has crashed and this is its last message.
        TROUBLE: why the core can't be relied on at the moment follows, as a string; an empty one: it can again.
    """

    HELLO = b"\x00"
    OUTPUTS = b"\x01"
    DEAD = b"\x02"
    TROUBLE = b"\x03"


class UtilityCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of the core by name, with plain data; answered by a ``UtilityResult`` of the same id."""

    call_id: int
    method: str
    args: list[Any] = []


class WaveReport(msgspec.Struct, frozen=True, kw_only=True):
    """From one of several engines that compute together (see ``corefw.engine.coordinator``).

    Attributes:
        wave: number of the wave.
        num_steps: that the engine has taken in it; 0: it has begun it.
        has_work: whether the engine needs a further step.
    """

    wave: int
    num_steps: int
    has_work: bool


class WaveOrder(msgspec.Struct, frozen=True, kw_only=True):
    """To such an engine: begin this wave, or go on with it for a round, or, unless it ``goes_on``, end it."""

    wave: int
    goes_on: bool = True
