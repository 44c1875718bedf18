"""What all API servers have counted, as the process that started them keeps it: the dead ones as one sum."""

from __future__ import annotations

from corefw.observability.metrics_share import MetricsShare, summed
from corefw.server.api_channel import Counted

__all__ = ["SharedCounts"]


class SharedCounts:
    """Of living servers each one's last word, and one sum of those that have gone: so it doesn't grow with restarts."""

    def __init__(self) -> None:
        self._living: dict[int, MetricsShare] = {}
        self._gone: MetricsShare | None = None

    def take(self, server: int, share: MetricsShare) -> Counted:
        """What a living one has told; returns it for the others."""
        self._living[server] = share
        return Counted(server=server, share=share)

    def server_gone(self, server: int) -> Counted | None:
        """It tells nothing any more; returns what the others have to know, None where it had counted nothing.

        It is the sum of all that went, with who is still counted beside it. So one that missed an earlier sum, or some
        server's last word, is right again with the next.
        """
        share = self._living.pop(server, None)
        if share is None:
            return None
        self._gone = share if self._gone is None else summed((self._gone, share))
        return self._sum()

    def all(self) -> tuple[Counted, ...]:
        """What one that starts has to know."""
        living = tuple(Counted(server=server, share=share) for server, share in self._living.items())
        return living if self._gone is None else (self._sum(), *living)

    def _sum(self) -> Counted:
        assert self._gone is not None
        return Counted(share=self._gone, living=tuple(self._living))
