"""What the workers tell of KV transfers."""

from __future__ import annotations

import msgspec

__all__ = ["TransferResults"]


class TransferResults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one rank's transfers came to since its last report.

    Attributes:
        rank: whose.
        finished_sending: requests whose blocks are no longer read.
        finished_receiving: requests whose asynchronous load is over, whether it succeeded or not: nothing writes to
            their blocks any more.
        failed_receiving: those of ``finished_receiving`` whose load failed.
        failed_blocks: ids of blocks that a load didn't fill; of an asynchronous one with its end, of a load within a
            step with that step's report. Without any, nothing of a failed load counts.
        broken: the connector raised, so no load that is on its way counts; blocks of asynchronous ones are kept until
            they are reported nevertheless.
    """

    rank: int = 0
    finished_sending: tuple[str, ...] = ()
    finished_receiving: tuple[str, ...] = ()
    failed_receiving: tuple[str, ...] = ()
    failed_blocks: tuple[int, ...] = ()
    broken: bool = False
