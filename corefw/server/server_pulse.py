"""Whether an API server does what it should, told from its board alone."""

from __future__ import annotations

from dataclasses import dataclass

from corefw.engine.liveness import Silence
from corefw.engine.step_board import BoardReader

__all__ = ["ServerLimits", "ServerPulse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """How long an API server may be silent.

    Attributes:
        quiet_s: without a heartbeat the whole isn't healthy.
        stopped_s: without a heartbeat it counts as dead.
        starting_s: the same while it starts, where imports may hold the interpreter for long.
        loop_quiet_s: so long its event loop may be busy with one thing before the whole isn't healthy.
        loop_s: and so long before it counts as dead. Its clients' requests go with it, so it is generous.
    """

    quiet_s: float = 1.2
    stopped_s: float = 15.0
    starting_s: float = 120.0
    loop_quiet_s: float = 5.0
    loop_s: float = 60.0


class ServerPulse:
    """Watches one API server; call ``look`` several times a second.

    Args:
        board: the server's; its turns are those of the event loop.
        limits: see there.

    Attributes:
        is_serving: whether its start is over; set from outside.
        trouble: why it can't be relied on at the moment; None while it can.
        verdict: why it has to count as dead.
    """

    def __init__(self, board: BoardReader, limits: ServerLimits) -> None:
        self._board = board
        self._limits = limits
        self._silence = Silence(board)
        self._num_turns = board.num_turns
        self._in_turn_s = 0.0
        self.is_serving = False
        self.trouble: str | None = None
        self.verdict: str | None = None

    def look(self, since_s: float) -> None:
        """Read the board, ``since_s`` seconds after the last time."""
        since_s = self._silence.look(since_s)
        num_turns = self._board.num_turns
        if num_turns != self._num_turns or not self.is_serving:
            self._in_turn_s = 0.0
        elif self._silence.silent_s < self._limits.quiet_s:  # a loop can't get on while the whole process stands still
            self._in_turn_s += since_s
        self._num_turns = num_turns
        self._judge()

    def _judge(self) -> None:
        limits, silent_s = self._limits, self._silence.silent_s
        silence = f"shown no sign of life for {silent_s:.1f} s"
        blocked = f"been busy with one thing in its event loop for {self._in_turn_s:.0f} s"
        self.trouble = None
        if self._in_turn_s >= limits.loop_quiet_s:
            self.trouble = f"has {blocked}"
        if self.is_serving and silent_s >= limits.quiet_s:
            self.trouble = f"has {silence}"
        if self._in_turn_s >= limits.loop_s:
            self.verdict = f"had {blocked}"
        if silent_s >= (limits.stopped_s if self.is_serving else limits.starting_s):
            self.verdict = f"had {silence}"
