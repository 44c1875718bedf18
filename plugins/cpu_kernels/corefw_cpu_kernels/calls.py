"""Calls into the library, and tapes of them.

Every entry point takes one array of eight-byte arguments, so a call is an address and a few bytes, and can be kept.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from corefw_cpu_kernels import library

__all__ = ["Call", "Kernel", "Tape", "name_of"]

_Entry = ctypes.CFUNCTYPE(None, ctypes.c_char_p)  # releases the interpreter's lock
Argument = torch.Tensor | int | float | None

Call = tuple[int, bytes, tuple[Argument, ...]]
"""Address of the kernel, its packed arguments, and these as they were given."""

_names: dict[int, str] = {}  # of kernels, by address

# By thread: one may record while another, with another engine, only computes.
_recording: dict[int, Tape] = {}


class Kernel:
    """One kernel by name. Calling it runs it, and has it on the tape that the thread is recording.

    Tensors go as their addresses, None as the null pointer; where the first call had a float, later ones must have
    numbers, elsewhere whole numbers. Sizes and strides are arguments like others: the kernel checks nothing.
    """

    __slots__ = ("_entries", "_pack", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._pack: Any = None
        self._entries: dict[str, tuple[int, Any]] = {}

    def __call__(self, *args: Argument) -> None:
        values = [arg.data_ptr() if isinstance(arg, torch.Tensor) else 0 if arg is None else arg for arg in args]
        if self._pack is None:
            self._pack = struct.Struct("=" + "".join("d" if isinstance(v, float) else "q" for v in values)).pack
        packed = self._pack(*values)
        address, run = self._entries.get(library.level()) or self._resolve()
        run(packed)
        if _recording and (tape := _recording.get(threading.get_ident())) is not None:
            tape.append(address, packed, args)

    def _resolve(self) -> tuple[int, Any]:
        address = library.entry_point(self.name)
        entry = address, _Entry(address)
        self._entries[library.level()] = entry
        _names[address] = self.name
        return entry


def name_of(address: int) -> str:
    """The name of a kernel that has been called."""
    return _names[address]


class _Call(ctypes.Structure):
    _fields_ = [("function", ctypes.c_void_p), ("args", ctypes.c_char_p)]


class Tape:
    """Calls in the order in which they were made, replayed in one.

    Keeps every tensor alive that a call had: its addresses are the recorded ones for good.

    Attributes:
        calls: what was recorded.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._array: Any = None

    def __len__(self) -> int:
        return len(self.calls)

    @contextmanager
    def record(self) -> Iterator[Tape]:
        """Every kernel that this thread calls inside the ``with`` block is run, and recorded.

        Raises:
            RuntimeError: another tape is recording in this thread.
        """
        thread = threading.get_ident()
        if thread in _recording:
            raise RuntimeError("another tape is recording")
        _recording[thread] = self
        try:
            yield self
        finally:
            del _recording[thread]

    def append(self, address: int, packed: bytes, args: tuple[Argument, ...]) -> None:
        """Add a call."""
        self.calls.append((address, packed, args))
        self._array = None

    def replay(self) -> None:
        """Make all calls again, with the same addresses and numbers."""
        if self._array is None:
            self._array = (_Call * len(self.calls))(*(_Call(*call[:2]) for call in self.calls))
        library.library().ck_replay(self._array, ctypes.c_int64(len(self.calls)))
