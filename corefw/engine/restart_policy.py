"""When a core counts as dead, and when another one is tried."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["LivenessLimits", "RestartPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessLimits:
    """How long a core may be silent.

    Attributes:
        quiet_s: without a heartbeat it isn't ready.
        stopped_s: without a heartbeat it counts as dead.
        starting_s: the same while it starts, where imports may hold the interpreter for long.
        start_s: a restart may always take so long, and ``step_factor`` times as long as the first start took.
        step_s: a step may always take so long.
        step_factor: it may take so many times as long as the longest of its size took.
        first_step_s: it may take so long where none of its size, or of a larger one, has ended yet.
        turn_s: what the core does between steps may take so long.
        call_s: a call may take so long, since it may be a plugin's.
    """

    quiet_s: float = 1.2
    stopped_s: float = 15.0
    starting_s: float = 120.0
    start_s: float = 300.0
    step_s: float = 15.0
    step_factor: float = 10.0
    first_step_s: float = 300.0
    turn_s: float = 15.0
    call_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """When to try again.

    Attributes:
        max_restarts: so many restarts in a row may bring no progress (no token, nor any suspect cleared); 0: none at
            all, a dead core is the end.
        first_delay_s: the second of them waits so long, each further one twice as long,
        max_delay_s: but no longer than this.
        limits: when a core that exists counts as dead.
    """

    max_restarts: int = 5
    first_delay_s: float = 0.5
    max_delay_s: float = 30.0
    limits: LivenessLimits = field(default_factory=LivenessLimits)

    def delay_s(self, num_fruitless: int) -> float:
        """How long to wait before the restart of that number, of those without progress."""
        return min(self.max_delay_s, self.first_delay_s * 2.0 ** (num_fruitless - 2)) if num_fruitless > 1 else 0.0
