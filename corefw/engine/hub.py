"""One engine for several front ends, each in a process of its own: this process stands between them and the engine.

So whatever the engine is made of (several cores, a supervisor that starts them anew) is known here alone, and a front
end that dies takes nobody along.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from corefw.engine.clients.base import post, read_until_death
from corefw.engine.core_sockets import CoreSockets
from corefw.engine.startup import Addresses, AddressesWanted, ControlChannel, Ready
from corefw.errors import EngineDeadError, EngineError
from corefw.messages.control import UtilityCall, WaveOrder
from corefw.messages.outputs import EngineCoreOutput, EngineCoreOutputs, FinishReason, SchedulerStats, UtilityResult

if TYPE_CHECKING:
    from corefw.engine.clients.base import AsyncCoreClient
    from corefw.messages.request import EngineCoreRequest

__all__ = ["EngineHub", "FrontEndLink"]

# A front end that nothing came for still learns so often how busy the engine is.
_STATS_S = 0.1
_TROUBLE_S = 0.2
_SIGN_OF_LIFE_S = 0.5


class EngineHub:
    """Used by one event loop; made while it runs.

    Args:
        client: a connected engine; whoever made it stops it, after ``close``.

    Attributes:
        death: done once the engine has gone for good, with its reason.
        front_end_trouble: why one of the front ends can't be relied on at the moment, set by who started them; all of
            them are told, as of an engine's trouble.
    """

    def __init__(self, client: AsyncCoreClient) -> None:
        self._client = client
        self._links: list[FrontEndLink] = []
        self._owners: dict[str, FrontEndLink] = {}
        self._calls: dict[int, tuple[FrontEndLink, int]] = {}
        self._call_ids = itertools.count(1)
        self._trouble: str | None = None
        self.front_end_trouble: str | None = None
        self._stats: SchedulerStats | None = None
        self.death: asyncio.Future[EngineDeadError] = asyncio.get_running_loop().create_future()
        self._tasks = [
            asyncio.create_task(self._distribute(), name="hub-outputs"),
            asyncio.create_task(self._watch_trouble(), name="hub-trouble"),
        ]

    @property
    def num_front_ends(self) -> int:
        """How many are connected."""
        return len(self._links)

    async def attach(self, stream: socket.socket) -> FrontEndLink:
        """Connect a front end that waits at the other end of ``stream``, as for a core.

        Raises:
            EngineError: it has died meanwhile.
        """
        link = FrontEndLink(self, await asyncio.to_thread(_connected, ControlChannel(stream)))
        self._links.append(link)
        link.start()
        try:
            await asyncio.to_thread(_send, ControlChannel(stream), Ready(plan=self._client.plan))
        except BaseException:
            await self.detach(link)
            raise
        self._catch_up(link)
        return link

    def _catch_up(self, link: FrontEndLink) -> None:
        """Tell a new front end what the others know: an idle engine says nothing by itself."""
        if self._stats is not None:
            link.send(EngineCoreOutputs(stats=self._stats))
        link.send_trouble(self._trouble)
        if self.death.done():
            link.send_dead(str(self.death.result()))

    async def detach(self, link: FrontEndLink) -> None:
        """Forget a front end; what it had asked for is aborted. May be called twice."""
        if link not in self._links:
            return
        self._links.remove(link)
        left = [request_id for request_id, owner in self._owners.items() if owner is link]
        for request_id in left:
            del self._owners[request_id]
        if left and not self.death.done():
            self._client.abort(left)
        await asyncio.to_thread(link.close)

    async def close(self) -> None:
        """Forget all front ends. Doesn't stop the engine."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in tuple(self._links):
            await self.detach(link)

    # What front ends send.

    def add_request(self, link: FrontEndLink, request: EngineCoreRequest) -> None:
        """Hand a request over."""
        if link not in self._links:
            return
        try:
            self._client.add_request(request)
        except (TypeError, ValueError, OverflowError) as error:
            self.reject(link, request.request_id, f"the request can't be sent: {error}")
        else:
            self._owners[request.request_id] = link

    def reject(self, link: FrontEndLink, request_id: str, error: str) -> None:
        """End a request that couldn't even be read."""
        ended = EngineCoreOutput(request_id=request_id, finish_reason=FinishReason.ERROR, error=error)
        link.send(EngineCoreOutputs(outputs=[ended]))

    def abort(self, link: FrontEndLink, request_ids: Sequence[str]) -> None:
        """End requests, its own ones."""
        own = [request_id for request_id in request_ids if self._owners.get(request_id) is link]
        if own and not self.death.done():
            self._client.abort(own)

    def call(self, link: FrontEndLink, call: UtilityCall) -> None:
        """Call the engine by name; front ends number their calls alike, so here they get other numbers."""
        call_id = next(self._call_ids)
        self._calls[call_id] = (link, call.call_id)
        self._client.call(msgspec.structs.replace(call, call_id=call_id))

    def leave(self, link: FrontEndLink) -> None:
        """It wants to end in order."""
        with contextlib.suppress(EngineError):
            link.send_dead("the front end has said that it ends")

    # What the engine sends.

    async def _distribute(self) -> None:
        death = await read_until_death(self._client, self._route)
        self.death.set_result(death)
        for link in self._links:
            link.send_dead(str(death))

    def _route(self, message: EngineCoreOutputs) -> None:
        shares: dict[FrontEndLink, list[EngineCoreOutput]] = {}
        for output in message.outputs:
            done = output.finish_reason is not None
            owner = self._owners.pop(output.request_id, None) if done else self._owners.get(output.request_id)
            if owner is not None:
                shares.setdefault(owner, []).append(output)
        to_all = bool(message.events or message.num_dropped_events)
        self._stats = message.stats or self._stats
        for link in self._links:
            stats = link.due(message.stats, link in shares)
            if link in shares or to_all or stats is not None:
                outputs = shares.get(link, [])
                link.send(msgspec.structs.replace(message, outputs=outputs, stats=stats, utility=None))
        if message.utility is not None:
            self._answer(message.utility)

    def _answer(self, result: UtilityResult) -> None:
        link, call_id = self._calls.pop(result.call_id)
        if link in self._links:
            link.send(EngineCoreOutputs(utility=msgspec.structs.replace(result, call_id=call_id)))

    async def _watch_trouble(self) -> None:
        """Told now and then though nothing has changed: it is this process's sign of life."""
        told_s = 0.0
        while True:
            trouble = self._client.trouble or self.front_end_trouble
            if trouble != self._trouble or time.monotonic() >= told_s + _SIGN_OF_LIFE_S:
                self._trouble, told_s = trouble, time.monotonic()
                for link in self._links:
                    link.send_trouble(self._trouble)
            await asyncio.sleep(_TROUBLE_S)


class FrontEndLink:
    """The wire to one front end, which takes the hub for a core. Its methods for requests are called by any thread."""

    def __init__(self, hub: EngineHub, sockets: CoreSockets) -> None:
        self._hub = hub
        self._sockets = sockets
        self._loop = asyncio.get_running_loop()
        self._stats_due_s = 0.0
        self._closed = False

    def start(self) -> None:
        """Begin to read."""
        self._sockets.start_receiving(self)

    def send(self, outputs: EngineCoreOutputs) -> None:
        """Send outputs; never blocks."""
        self._sockets.send(outputs)

    def send_dead(self, reason: str) -> None:
        """Say that nothing comes any more, and why."""
        self._sockets.send_dead(reason)

    def send_trouble(self, trouble: str | None) -> None:
        """Say why the engine can't be relied on at the moment."""
        self._sockets.send_trouble(trouble)

    def due(self, stats: SchedulerStats | None, has_outputs: bool) -> SchedulerStats | None:
        """The figures if they are to be sent now: with outputs, when the engine falls idle, else now and then."""
        now_s = time.monotonic()
        if stats is None or not (has_outputs or _is_idle(stats) or now_s >= self._stats_due_s):
            return None
        self._stats_due_s = now_s + _STATS_S
        return stats

    def close(self) -> None:
        """Close the sockets. May block for a second."""
        self._sockets.close()

    def add_request(self, request: EngineCoreRequest) -> None:
        """From the front end."""
        self._post(partial(self._hub.add_request, self, request))

    def reject(self, request_id: str, error: str) -> None:
        """From the front end, of what couldn't be read."""
        self._post(partial(self._hub.reject, self, request_id, error))

    def abort(self, request_ids: Sequence[str]) -> None:
        """From the front end."""
        self._post(partial(self._hub.abort, self, tuple(request_ids)))

    def call(self, call: UtilityCall) -> None:
        """From the front end."""
        self._post(partial(self._hub.call, self, call))

    def start_wave(self, order: WaveOrder) -> None:
        """Front ends order nothing of the kind."""
        del order

    def stop(self) -> None:
        """From the front end, as its last message."""
        self._post(partial(self._hub.leave, self))

    def _post(self, action: Callable[[], None]) -> None:
        post(self._loop, lambda _: action(), None)


def _is_idle(stats: SchedulerStats) -> bool:
    return not stats.num_running and not stats.num_waiting


def _connected(channel: ControlChannel) -> CoreSockets:
    _send(channel, AddressesWanted())
    addresses = channel.receive()
    if not isinstance(addresses, Addresses):
        raise EngineError("the front end died before it was connected")
    return CoreSockets(addresses.requests, addresses.outputs)


def _send(channel: ControlChannel, message: AddressesWanted | Ready) -> None:
    try:
        channel.send(message)
    except OSError:
        raise EngineError("the front end died before it was connected") from None
