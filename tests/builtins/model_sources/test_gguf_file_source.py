from __future__ import annotations

from pathlib import Path

import pytest

from corefw.builtins.model_sources.gguf_file import GGUFFile
from corefw.errors import ModelSourceError
from corefw.interfaces.model_source import SourceOptions

OPTIONS = SourceOptions(cache_dir="unused")


def test_a_gguf_file_is_resolved_to_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "w.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    for reference in ("w.gguf", str(tmp_path / "w.gguf")):
        assert GGUFFile().supports(reference) is None
        files = GGUFFile().resolve(reference, OPTIONS)
        assert (files.root, files.weights) == (str(tmp_path), (str(tmp_path / "w.gguf"),))


def test_a_missing_file_and_a_directory_are_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match="there is no such file"):
        GGUFFile().resolve("/nowhere/w.gguf", OPTIONS)
    (tmp_path / "d.gguf").mkdir()
    with pytest.raises(ModelSourceError, match="is a directory"):
        GGUFFile().resolve(str(tmp_path / "d.gguf"), OPTIONS)


def test_other_references_are_left_to_other_sources_with_a_reason() -> None:
    assert GGUFFile().supports("org/name") == "it doesn't end in .gguf"
