"""The actors of one engine, by rank: made, asked together, watched, ended."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util import remove_placement_group
from ray.util.placement_group import PlacementGroup

from corefw.errors import EngineDeadError, EngineError
from corefw.messages.codec import Codec, Frame
from corefw.sdk.executors import Answer, AskedFuture, cause
from corefw_executor_ray.placement import actor_class_in
from corefw_executor_ray.rank_actor import RankActor, packed
from corefw_executor_ray.told import cause_of

__all__ = ["ActorGroup", "PendingAnswers", "make_actors"]

_T = TypeVar("_T")

# When one rank has failed in a step the others have so long to finish it: they may wait for it in an operation.
_STRAGGLER_S = 10.0
_LOOK_S = 1.0
# Beyond this Ray keeps an argument in its object store; then once for all ranks.
_INLINE_BYTES = 64 * 1024


def make_actors(group: PlacementGroup, num_actors: int, resources: dict[str, float]) -> list[Any]:
    """An actor in each bundle. They don't restart: the engine as a whole does."""
    groups = {"concurrency_groups": {"watch": 1}}
    return [actor_class_in(RankActor, group, index, resources, **groups).remote() for index in range(num_actors)]


class ActorGroup:
    """Used by one thread; another one watches.

    Args:
        actors: as they were placed; by rank once they have been seated.
        placement: what the actors stand in; goes with them.

    Attributes:
        reason: why the ranks can't go on; None while they can.
    """

    def __init__(self, actors: Sequence[Any], placement: PlacementGroup) -> None:
        self._actors = list(actors)
        self._names = [f"worker {index}" for index in range(len(actors))]
        self._placement = placement
        self._codec = Codec(Answer)
        self._callback: Callable[[str], None] | None = None
        self._closed = threading.Event()
        self.reason: str | None = None
        self._watcher = threading.Thread(target=self._watch, name="ray-watcher", daemon=True)
        self._watcher.start()

    def __len__(self) -> int:
        return len(self._actors)

    def seat(self, order: Sequence[int], names: Sequence[str]) -> None:
        """Decide on the ranks, before there are commands.

        Args:
            order: numbers of actors, by rank.
            names: by rank, for messages.
        """
        actors = self._actors
        self._names = list(names)
        self._actors = [actors[number] for number in order]

    def on_failure(self, callback: Callable[[str], None]) -> None:
        """Called from another thread when a rank dies, once."""
        self._callback = callback
        if self.reason is not None:
            callback(self.reason)

    def tell(self, command: Sequence[Frame]) -> list[Any]:
        """Send a command to every rank; where their answers will be."""
        if self._closed.is_set():
            raise EngineError("the executor has been shut down")
        self.check()
        frames = packed(command)
        sent = ray.put(frames) if sum(map(len, frames)) > _INLINE_BYTES else frames
        return [actor.obey.remote(sent) for actor in self._actors]

    def ask(self, command: Sequence[Frame], finish: Callable[[Sequence[Answer]], _T]) -> PendingAnswers[_T]:
        """Send a command; its future."""
        return PendingAnswers(self, self.tell(command), finish)

    def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Answer]:
        """Call a method with arguments of its own on each rank; raises what one of them raised."""
        refs = [getattr(actor, method).remote(*args) for actor, args in zip(self._actors, arguments, strict=True)]
        return self.wait(refs)

    def first(self, method: str, *arguments: Any) -> Answer:
        """Call a method on rank 0 alone."""
        return self.wait([getattr(self._actors[0], method).remote(*arguments)])[0]

    def wait(self, refs: Sequence[Any]) -> list[Answer]:
        """The answers of all ranks.

        Raises:
            EngineDeadError: a rank died, or doesn't finish where another one has failed.
            Exception: what a rank raised; whose complaint isn't about another one's goes first.
        """
        answers: dict[int, Answer] = {}
        deadline: float | None = None
        while len(answers) < len(refs):
            ready, _ = ray.wait(list(refs), num_returns=len(refs), timeout=_LOOK_S)
            self.check()
            for rank, ref in enumerate(refs):
                if rank not in answers and ref in ready:
                    answers[rank] = self._answer(rank, ref)
            if any(answer.failure is not None for answer in answers.values()):
                deadline = deadline or time.monotonic() + _STRAGGLER_S
                if time.monotonic() >= deadline:
                    missing = [name for rank, name in enumerate(self._names) if rank not in answers]
                    self._fail(f"{', '.join(missing)} didn't finish what another rank failed in")
                    self.check()
        in_order = [answers[rank] for rank in range(len(refs))]
        if (error := cause(in_order)) is not None:
            raise error
        return in_order

    def check(self) -> None:
        """Raises EngineDeadError when a rank has died."""
        if self.reason is not None:
            raise EngineDeadError(self.reason)

    def close(self, grace_s: float) -> None:
        """End the actors: those that don't stop in time are killed. May be called twice."""
        if self._closed.is_set():
            return
        self._closed.set()
        with contextlib.suppress(RayError, GetTimeoutError):
            if grace_s and self.reason is None:
                ray.get([actor.stop.remote() for actor in self._actors], timeout=grace_s)
        for actor in self._actors:
            ray.kill(actor)
        remove_placement_group(self._placement)
        self._watcher.join(2 * _LOOK_S)

    def _answer(self, rank: int, ref: Any) -> Answer:
        try:
            return self._codec.decode(ray.get(ref))
        except RayError as error:
            self._fail(f"{self._names[rank]} died: {cause_of(error)}")
            self.check()
            raise

    def _watch(self) -> None:
        waiting = {actor.watch.options(concurrency_group="watch").remote(): actor for actor in self._actors}
        while not self._closed.is_set():
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=_LOOK_S)
            if ready and not self._closed.is_set():
                try:
                    ray.get(ready[0])
                except RayError as error:
                    name = self._names[self._actors.index(waiting[ready[0]])]
                    self._fail(f"{name} died: {cause_of(error)}")
                return

    def _fail(self, reason: str) -> None:
        if self.reason is None and not self._closed.is_set():
            self.reason = reason
            if self._callback is not None:
                self._callback(reason)


class PendingAnswers(AskedFuture[_T]):
    """What all ranks answer to a command.

    Args:
        group: whose answers they are.
        refs: where they will be, by rank.
        finish: makes the result of them.
    """

    def __init__(self, group: ActorGroup, refs: Sequence[Any], finish: Callable[[Sequence[Answer]], _T]) -> None:
        super().__init__()
        self._group = group
        self._refs = refs
        self._finish = finish

    def look(self, *, wait: bool) -> None:
        if self.completed or not (wait or self._is_ready()):
            return
        try:
            self.set_result(self._finish(self._group.wait(self._refs)))
        except Exception as error:  # the step border: the caller records it
            self.set_exception(error)

    def _is_ready(self) -> bool:
        ready, _ = ray.wait(list(self._refs), num_returns=len(self._refs), timeout=0)
        return len(ready) == len(self._refs) or self._group.reason is not None
