"""Conformance suite of model sources."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from corefw.config.model_info import ModelFiles
from corefw.errors import ModelSourceError
from corefw.interfaces.model_source import ModelSource, SourceOptions
from corefw.testing.suite import NotChecked, PluginSuite, check_reason

__all__ = ["ModelSourceSuite"]

_OTHERS = ("", "some/model", "pypi:package", "./folder", "/nowhere/model.gguf", "s3://bucket/model", "a b")


class ModelSourceSuite(PluginSuite):
    """For ``corefw.model_sources``."""

    plugin: ClassVar[type[ModelSource]]
    group = "model_sources"

    def make_reference(self, folder: Path) -> str:
        """A reference of this source's kind to a model that is there, without the network; ``folder`` is empty.

        Raises:
            NotChecked: none is known (the default).
        """
        raise NotChecked(f"return a reference from make_reference(); {folder} is for its files")

    def test_its_rank_is_a_number(self) -> None:
        assert isinstance(self.plugin.rank, int)

    def test_it_says_yes_or_why_not_and_stays_off_the_network(self) -> None:
        source = self.plugin()
        with _no_network():
            for reference in _OTHERS:
                check_reason(source.supports(reference), f"supports({reference!r})")

    def test_it_knows_its_own_references(self) -> None:
        with _folder() as folder, _no_network():
            reference = self.make_reference(folder)
            assert self.plugin().supports(reference) is None, f"supports({reference!r}) says no"

    def test_what_it_resolves_are_local_files(self) -> None:
        with _folder() as folder:
            reference = self.make_reference(folder)
            files = self._resolve(reference, folder)
            assert files.source == self.plugin.name, f"files are of source {files.source!r}"
            assert files.reference == reference
            missing = [path for path in (files.root, *files.weights) if not Path(path).exists()]
            assert not missing, f"there is no {missing}"
            assert all(Path(path).is_absolute() for path in (files.root, *files.weights)), "paths must be absolute"
            assert self._resolve(reference, folder) == files, "a second call finds other files"

    def test_a_model_that_is_gone_is_an_error_that_names_it(self) -> None:
        with _folder() as folder:
            reference = self.make_reference(folder)
        try:
            self._resolve(reference, folder)
        except ModelSourceError as error:
            assert str(error)
            return
        raise AssertionError(f"resolve({reference!r}) finds files that were removed")

    def _resolve(self, reference: str, folder: Path) -> ModelFiles:
        options = SourceOptions(cache_dir=str(folder / "cache"), offline=True)
        return self.plugin().resolve(reference, options)


@contextmanager
def _no_network() -> Iterator[None]:
    def refuse(*arguments: Any) -> None:
        raise AssertionError(f"supports() goes to the network: {arguments[1:]}")

    kept = socket.socket.connect
    socket.socket.connect = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        socket.socket.connect = kept  # type: ignore[method-assign]


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="corefw-source-") as folder:
        yield Path(folder).resolve()
