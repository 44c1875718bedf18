"""Futures that need no thread to complete them. Torch-free."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar, cast

__all__ = ["AskedFuture", "SettledFuture", "settled"]

_T = TypeVar("_T")


class SettledFuture(Future[_T]):
    """Is completed, and nobody else knows it: it has no lock, which two of a step would cost more than they carry."""

    def __init__(self, value: _T | None = None, error: Exception | None = None) -> None:
        self._value = value
        self._error = error

    def done(self) -> bool:
        return True

    def running(self) -> bool:
        return False

    def cancel(self) -> bool:
        return False

    def cancelled(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> _T:
        del timeout
        if self._error is not None:
            raise self._error
        return cast("_T", self._value)

    def exception(self, timeout: float | None = None) -> Exception | None:
        del timeout
        return self._error

    def add_done_callback(self, fn: Callable[[Future[_T]], object]) -> None:
        fn(self)


def settled(call: Callable[[], _T]) -> Future[_T]:
    """The future of what is done when this returns; it carries the result, or the failure."""
    try:
        return SettledFuture(call())
    except Exception as error:  # the step border: the caller records it
        return SettledFuture(error=error)


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
