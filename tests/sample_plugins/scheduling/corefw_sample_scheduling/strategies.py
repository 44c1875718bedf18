"""Short prompts first; and who gives way is whoever has least to compute again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from corefw.interfaces.scheduler import QueueOrder, RequestView, VictimChoice

__all__ = ["LeastLost", "ShortestPromptFirst"]


class ShortestPromptFirst(QueueOrder):
    """Answers many short questions while a long one waits."""

    name: ClassVar[str] = "shortest-prompt"

    def queue_key(self, request: RequestView) -> tuple[float, ...]:
        return (request.num_tokens,)


class LeastLost(VictimChoice):
    """Preempts the request with the fewest computed tokens."""

    name: ClassVar[str] = "least-lost"

    def victim(self, running: Sequence[RequestView]) -> int:
        return min(range(len(running)), key=lambda index: running[index].num_computed_tokens)
