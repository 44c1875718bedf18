"""Futures that need no thread to complete them. Torch-free."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["AskedFuture", "settled"]

_T = TypeVar("_T")


def settled(call: Callable[[], _T]) -> Future[_T]:
    """The future of what is done when this returns; it carries the result, or the failure."""
    future: Future[_T] = Future()
    try:
        future.set_result(call())
    except Exception as error:  # the step border: the caller records it
        future.set_exception(error)
    return future


class AskedFuture(Future[_T], ABC):
    """Is completed when it is asked, by the thread that asks."""

    @abstractmethod
    def look(self, *, wait: bool) -> None:
        """Complete it, unless it is; without ``wait`` only if what it takes is there."""

    @property
    def completed(self) -> bool:
        """Whether it has a result, without looking for one."""
        return super().done()

    def done(self) -> bool:
        self.look(wait=False)
        return super().done()

    def result(self, timeout: float | None = None) -> _T:
        self.look(wait=True)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.look(wait=True)
        return super().exception(timeout)
