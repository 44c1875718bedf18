"""Whether a core does what it should, told from its board alone."""

from __future__ import annotations

import math

from corefw.engine.restart_policy import LivenessLimits
from corefw.engine.step_board import BoardReader, Doing

__all__ = ["Pulse", "Silence", "StepTimes"]

# However long nobody looked, so much counts at most: the process that looks may have been stopped as well.
_MAX_LOOK_S = 0.5


class Silence:
    """How long a process has shown no sign of life; call ``look`` several times a second.

    Args:
        board: the process's.

    Attributes:
        silent_s: since its last heartbeat.
    """

    def __init__(self, board: BoardReader) -> None:
        self._board = board
        self._num_beats = board.num_beats
        self.silent_s = 0.0

    def look(self, since_s: float) -> float:
        """Read the board, ``since_s`` seconds after the last time; returns how much of that counts."""
        since_s = min(since_s, _MAX_LOOK_S)
        num_beats = self._board.num_beats
        self.silent_s = 0.0 if num_beats != self._num_beats else self.silent_s + since_s
        self._num_beats = num_beats
        return since_s


class StepTimes:
    """How long steps took, by their size: powers of two of tokens. What was learnt outlives a core."""

    def __init__(self, limits: LivenessLimits) -> None:
        self._limits = limits
        self._longest_s: dict[int, float] = {}

    def took(self, num_tokens: int, time_s: float) -> None:
        """A step has ended."""
        size = num_tokens.bit_length()
        self._longest_s[size] = max(time_s, self._longest_s.get(size, 0.0))

    def limit_s(self, num_tokens: int) -> float:
        """How long a step of this size may take."""
        size = num_tokens.bit_length()
        known = [longest_s for seen, longest_s in self._longest_s.items() if seen >= size]
        if not known:
            return self._limits.first_step_s
        # A larger step can't have been quicker, so the smallest known one says most.
        longest_s = self._longest_s.get(size, min(known))
        return max(self._limits.step_s, self._limits.step_factor * longest_s)


class Pulse:
    """Watches one core process; call ``look`` several times a second.

    Args:
        board: the core's.
        limits: see there.
        times: of the steps of all cores so far.
        is_ready: see below.
        start_limit_s: how long it may be until it is ready.

    Attributes:
        is_ready: whether its start is over; set from outside.
        trouble: why it can't be relied on at the moment; None while it can.
        verdict: why it has to count as dead.
    """

    def __init__(
        self,
        board: BoardReader,
        limits: LivenessLimits,
        times: StepTimes,
        *,
        is_ready: bool,
        start_limit_s: float = math.inf,
    ) -> None:
        self._board = board
        self._limits = limits
        self._times = times
        self._silence = Silence(board)
        self._num_ended = board.num_ended
        self._in_step_s = 0.0
        self._num_turns = board.num_turns
        self._in_turn_s = 0.0
        self._starting_s = 0.0
        self._start_limit_s = start_limit_s
        self.is_ready = is_ready
        self.trouble: str | None = None
        self.verdict: str | None = None

    def look(self, since_s: float) -> None:
        """Read the board, ``since_s`` seconds after the last time."""
        since_s = self._silence.look(since_s)
        self._judge_silence(self._silence.silent_s)
        if self.is_ready:
            self._look_at_turn(since_s)
            self._look_at_step(since_s)
            return
        self._starting_s += since_s
        if self._starting_s >= self._start_limit_s:
            self.verdict = f"wasn't ready after {self._starting_s:.0f} s"

    def _judge_silence(self, silent_s: float) -> None:
        self.trouble = None
        if silent_s >= self._limits.quiet_s:
            self.trouble = f"the engine core has shown no sign of life for {silent_s:.1f} s"
        if silent_s >= (self._limits.stopped_s if self.is_ready else self._limits.starting_s):
            self.verdict = f"showed no sign of life for {silent_s:.0f} s"

    def _look_at_turn(self, since_s: float) -> None:
        """Between steps; in a call also while steps are under way."""
        num_turns, doing = self._board.num_turns, self._board.doing
        is_at_it = doing is Doing.CALL or (doing is Doing.WORK and not self._board.is_stepping)
        if num_turns != self._num_turns or not is_at_it:
            self._num_turns, self._in_turn_s = num_turns, 0.0
            return
        self._in_turn_s += since_s
        limit_s = self._limits.call_s if doing is Doing.CALL else self._limits.turn_s
        what = "a call" if doing is Doing.CALL else "what it does between steps"
        if self._in_turn_s >= self._limits.turn_s:
            self.trouble = self.trouble or f"the engine core has been for {self._in_turn_s:.0f} s in {what}"
        if self._in_turn_s >= limit_s:
            self.verdict = f"was for more than {limit_s:.0f} s in {what}"

    def _look_at_step(self, since_s: float) -> None:
        num_ended = self._board.num_ended
        if num_ended != self._num_ended:
            self._times.took(self._board.num_ended_tokens, self._in_step_s + since_s)  # at most so long
            self._num_ended, self._in_step_s = num_ended, 0.0
        if not self._board.is_stepping:
            self._in_step_s = 0.0
            return
        if self._board.doing is Doing.CALL:  # the step waits for its end
            return
        self._in_step_s += since_s
        num_tokens = self._board.num_step_tokens
        limit_s = self._times.limit_s(num_tokens)
        if self._in_step_s >= limit_s:
            self.verdict = f"was for more than {limit_s:.0f} s in a step of {num_tokens} tokens"
