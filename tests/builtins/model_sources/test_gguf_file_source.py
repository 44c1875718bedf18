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


@pytest.mark.parametrize("named", [1, 2, 3])
def test_any_part_of_a_split_model_stands_for_all_of_them(tmp_path: Path, named: int) -> None:
    parts = [tmp_path / f"w-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for part in parts:
        part.write_bytes(b"GGUF")
    files = GGUFFile().resolve(str(parts[named - 1]), OPTIONS)
    assert (files.root, files.weights) == (str(tmp_path), tuple(map(str, parts)))
    parts[named % 3].unlink()
    with pytest.raises(ModelSourceError, match=rf"{parts[named % 3].name}: is missing, part {named % 3 + 1} of the 3"):
        GGUFFile().resolve(str(parts[named - 1]), OPTIONS)


def test_parts_that_are_links_are_found_by_their_own_names(tmp_path: Path) -> None:
    blobs = [tmp_path / "blobs" / name for name in ("a", "b")]
    blobs[0].parent.mkdir()
    for number, blob in enumerate(blobs, 1):
        blob.write_bytes(b"GGUF")
        (tmp_path / f"w-0000{number}-of-00002.gguf").symlink_to(blob)
    assert GGUFFile().resolve(str(tmp_path / "w-00002-of-00002.gguf"), OPTIONS).weights == tuple(map(str, blobs))


@pytest.mark.parametrize("name", ["w-00004-of-00003.gguf", "w-00000-of-00003.gguf"])
def test_a_number_beyond_the_count_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ModelSourceError, match=r"can't be part [04] of 3"):
        GGUFFile().resolve(str(tmp_path / name), OPTIONS)
