"""The folder of kept weights: found by key, bounded, safe for starts at the same time. Torch-free."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from corefw.errors import ModelFormatError
from corefw.models.weights_cache.kept_file import KeptWeights, read_kept, write_kept
from corefw.observability.logging import get_logger

__all__ = ["WeightsStore"]

_log = get_logger(__name__)

_ENDING, _UNFINISHED = ".weights", ".part"
_LEFT_FREE_BYTES = 2**30


class WeightsStore:
    """A file for each key. What fails is logged, and never stops a start.

    Args:
        folder: made when something is first kept.
        max_bytes: of all files; the ones that were used longest ago make room.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    def path(self, key: str) -> Path:
        """Where the weights of a key are, or would be."""
        return self._folder / f"{key}{_ENDING}"

    def find(self, key: str) -> KeptWeights | None:
        """The weights of a key. A damaged file is dropped."""
        path = self.path(key)
        try:
            kept = read_kept(path, key)
        except FileNotFoundError:
            return None
        except ModelFormatError as error:
            _log.warning("weights cache: %s is dropped, since %s", path, error)
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        except (OSError, ValueError) as error:
            _log.warning("weights cache: %s can't be read (%s)", path, error)
            return None
        with contextlib.suppress(OSError):  # a folder that can't be written serves as well
            os.utime(path)
        return kept

    def keep(self, key: str, about: Mapping[str, Any], tensors: Sequence[npt.NDArray[np.uint8]]) -> bool:
        """Keep weights; False, and the log says why, where that can't be."""
        size = sum(tensor.nbytes for tensor in tensors)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            reason = self._make_room(size)
            if reason is None:
                reason = self._write(key, about, tensors)
        except (OSError, ModelFormatError) as error:
            reason = str(error)
        if reason is not None:
            _log.warning("weights cache: this start's weights aren't kept in %s: %s", self._folder, reason)
        return reason is None

    def _write(self, key: str, about: Mapping[str, Any], tensors: Sequence[npt.NDArray[np.uint8]]) -> str | None:
        unfinished = self._folder / f".{key}{_UNFINISHED}"
        with _claimed(unfinished) as fd:
            if fd is None:
                return "another start is keeping them"
            try:
                os.ftruncate(fd, 0)  # it may be what a start left that was killed just now
                write_kept(fd, key, about, tensors)
                unfinished.replace(self.path(key))
            except BaseException:
                with contextlib.suppress(OSError):
                    unfinished.unlink()
                raise
        return None

    def _make_room(self, wanted: int) -> str | None:
        """Drop what was used longest ago; returns why there can't be room."""
        if wanted > self._max_bytes:
            return f"they take {wanted} bytes, and --weights-cache-bytes allows {self._max_bytes}"
        self._drop_unfinished()
        total = 0
        for _, size, path in sorted(self._files(), reverse=True):
            total += size
            if path.suffix == _ENDING and total + wanted > self._max_bytes:
                _log.info("weights cache: %s makes room", path)
                path.unlink(missing_ok=True)
                total -= size
        free = shutil.disk_usage(self._folder).free
        if free < wanted + _LEFT_FREE_BYTES:
            return f"they take {wanted} bytes, and {free} are free"
        return None

    def _drop_unfinished(self) -> None:
        """What killed starts left."""
        for path in self._folder.glob(f".*{_UNFINISHED}"):
            with _claimed(path) as fd:
                if fd is not None:
                    path.unlink(missing_ok=True)

    def _files(self) -> list[tuple[float, int, Path]]:
        found = []
        for path in self._folder.iterdir():
            if path.suffix in (_ENDING, _UNFINISHED):
                with contextlib.suppress(FileNotFoundError):
                    stat = path.stat()
                    found.append((stat.st_mtime, stat.st_size, path))
        return found


@contextlib.contextmanager
def _claimed(path: Path) -> Iterator[int | None]:
    """An unfinished file, locked, to write to; None: somebody else writes it. The lock also goes with the process."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield fd if _is_locked(fd, path) else None
    finally:
        os.close(fd)


def _is_locked(fd: int, path: Path) -> bool:
    """Whether this could lock it, and whoever had it before neither finished nor dropped it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(fd), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False
