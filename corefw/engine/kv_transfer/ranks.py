"""What the ranks report, put together."""

from __future__ import annotations

from collections.abc import Iterable

from corefw.messages.kv_transfer import TransferResults

__all__ = ["RankAggregator"]


class RankAggregator:
    """A request is done when every rank has reported it; a rank that reports it twice counts once.

    Args:
        num_ranks: that report.
    """

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._sending: dict[str, set[int]] = {}
        self._receiving: dict[str, set[int]] = {}
        self._failed: set[str] = set()

    def add(self, reports: Iterable[TransferResults]) -> TransferResults:
        """Take the reports of a step.

        Returns:
            Ids that are done now, on all ranks; of these, who failed on any; blocks that any rank reported now.
        """
        sent: list[str] = []
        received: list[str] = []
        failed_blocks: set[int] = set()
        broken = False
        for report in reports:
            self._failed.update(report.failed_receiving)
            sent += self._count(self._sending, report.finished_sending, report.rank)
            # A failed receive is also a finished one, whether or not the connector remembered to say so.
            received += self._count(
                self._receiving, (*report.finished_receiving, *report.failed_receiving), report.rank
            )
            failed_blocks.update(report.failed_blocks)
            broken |= report.broken
        failed = self._failed.intersection(received)
        self._failed -= failed
        return TransferResults(
            finished_sending=tuple(sent),
            finished_receiving=tuple(received),
            failed_receiving=tuple(sorted(failed)),
            failed_blocks=tuple(sorted(failed_blocks)),
            broken=broken,
        )

    def _count(self, reported: dict[str, set[int]], ids: Iterable[str], rank: int) -> list[str]:
        done = []
        for request_id in dict.fromkeys(ids):
            ranks = reported.setdefault(request_id, set())
            ranks.add(rank)
            if len(ranks) >= self._num_ranks:
                del reported[request_id]
                done.append(request_id)
        return done
