"""A load that was asked of the workers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from corefw.engine.request import Request

__all__ = ["Load"]


class Load:
    """A request's external tokens on their way into its blocks; what the request waits for if it is asynchronous.

    Args:
        request: whose.
        start: its first external token, and
        stop: the one behind the last.
        block_ids: the request's blocks, by KV-cache group.
        block_sizes: by group.
    """

    __slots__ = ("_starts", "done", "failed", "request", "start", "stop")

    reason = "its KV is being loaded"

    def __init__(
        self, request: Request, start: int, stop: int, block_ids: Sequence[Sequence[int]], block_sizes: Sequence[int]
    ) -> None:
        self.request = request
        self.start = start
        self.stop = stop
        self.done = False
        self.failed = False
        # By block that is loaded into, its first token.
        self._starts = {
            ids[index]: index * size
            for ids, size in zip(block_ids, block_sizes, strict=True)
            for index in range(start // size, -(-stop // size))
        }

    def ready(self) -> bool:
        """Whether the request can go on."""
        return self.done

    def lose(self, block_ids: Collection[int]) -> None:
        """Note that blocks weren't filled; those of others don't matter."""
        lost = [start for block_id, start in self._starts.items() if block_id in block_ids]
        if lost:
            self.failed = True
            self.stop = max(self.start, min(self.stop, *lost))

    def lose_all(self) -> None:
        """Note that the load failed; what is known of its blocks tells how much of it counts."""
        if not self.failed:
            self.failed = True
            self.stop = self.start
