"""How fast this machine reads memory: what bounds a single stream's decode, whose every step reads all weights."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

__all__ = ["Bandwidth", "Bound"]

_SOURCE = """
#include <stddef.h>
#include <stdint.h>
typedef uint64_t lanes __attribute__((vector_size(64)));
uint64_t read_all(const char* data, size_t size, int num_threads) {
    uint64_t total = 0;
    #pragma omp parallel for num_threads(num_threads) schedule(static) reduction(^ : total)
    for (size_t piece = 0; piece < size / 65536; ++piece) {
        const lanes* at = (const lanes*)(data + piece * 65536);
        lanes a = {0}, b = {0}, c = {0}, d = {0};
        for (size_t i = 0; i < 65536 / sizeof(lanes); i += 4) {
            __builtin_prefetch(at + i + 32);
            __builtin_prefetch(at + i + 34);
            a ^= at[i]; b ^= at[i + 1]; c ^= at[i + 2]; d ^= at[i + 3];
        }
        a ^= b ^ c ^ d;
        for (int lane = 0; lane < 8; ++lane) total ^= a[lane];
    }
    return total;
}
"""


class Bandwidth:
    """Reads a buffer as large as a model, by all threads: with a loop of C where there is a compiler, and with torch.

    Args:
        num_bytes: of the buffer.
    """

    def __init__(self, num_bytes: int) -> None:
        self._words = torch.zeros(num_bytes // 65536 * 65536 // 8, dtype=torch.int64)
        self._words.fill_(1)
        self._size = self._words.numel() * 8
        self._readers: list[Callable[[], object]] = [self._words.sum]
        loop = _compiled()
        if loop is not None:
            threads = torch.get_num_threads()
            self._readers.append(lambda: loop(ctypes.c_void_p(self._words.data_ptr()), self._size, threads))

    def measure(self, repeats: int = 5) -> float:
        """Bytes a second: of the best reader, its median."""
        return max(self._rate(reader, repeats) for reader in self._readers)

    def _rate(self, reader: Callable[[], object], repeats: int) -> float:
        times_s = []
        for _ in range(repeats + 1):
            start_s = time.perf_counter()
            reader()
            times_s.append(time.perf_counter() - start_s)
        return self._size / float(np.median(times_s[1:]))


@dataclass(frozen=True, slots=True)
class Bound:
    """Tokens a second that no engine exceeds whose step reads all weights and the context's keys and values.

    Attributes:
        bandwidth: of the machine.
        weight_bytes: read by a step.
        token_bytes: of a context's token.
    """

    bandwidth: Bandwidth
    weight_bytes: int
    token_bytes: int

    def rate(self, context: int) -> float:
        """As measured now."""
        return self.bandwidth.measure() / (self.weight_bytes + context * self.token_bytes)


def _compiled() -> Callable[..., object] | None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="corefw-bandwidth-") as folder:
        source, library = Path(folder) / "read.c", Path(folder) / "read.so"
        source.write_text(_SOURCE, encoding="utf-8")
        command = [compiler, "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", str(source), "-o", str(library)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return None
        loop = ctypes.CDLL(str(library)).read_all
    loop.restype = ctypes.c_uint64
    loop.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return loop
