from __future__ import annotations

import pytest

from corefw import env


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, "glibc.malloc.hugetlb=1"),
        ("", "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.arena_max=2", "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0:glibc.rtld.nns=4", "glibc.malloc.hugetlb=0:glibc.rtld.nns=4"),
    ],
)
def test_a_computing_process_gets_a_heap_of_huge_pages_unless_the_user_chose(
    monkeypatch: pytest.MonkeyPatch, given: str | None, expected: str
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if given is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", given)
    assert env.child_environment()["GLIBC_TUNABLES"] == expected


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [("GOMP_SPINCOUNT", "7", "7"), ("OMP_WAIT_POLICY", "active", None), ("UNRELATED", "1", "10000")],
)
def test_idle_threads_spin_shortly_unless_the_user_chose(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, expected: str | None
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    assert env.child_environment().get("GOMP_SPINCOUNT") == expected
