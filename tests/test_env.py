from __future__ import annotations

import pytest

from corefw import env
from corefw.errors import ConfigError


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


_LAUNCHED = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "node-0", "MASTER_PORT": "29500"}


def _launch(monkeypatch: pytest.MonkeyPatch, **changes: str) -> env.LaunchedRank | None:
    for name in (*_LAUNCHED, "LOCAL_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**_LAUNCHED, **changes}.items():
        monkeypatch.setenv(name, value)
    return env.launched_rank()


def test_a_launched_process_knows_its_rank_and_where_to_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = _launch(monkeypatch, LOCAL_WORLD_SIZE="2")
    assert launched == env.LaunchedRank(3, 4, 1, 2, "tcp://node-0:29500/corefw")


def test_ranks_that_were_started_again_meet_apart_from_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "a run/1", "MASTER_ADDR": "fe80::1"}
    first, second = (_launch(monkeypatch, **changes, TORCHELASTIC_RESTART_COUNT=count) for count in "01")
    assert first is not None
    assert second is not None
    assert first.address == "agent://[fe80::1]:29500/corefw/a%20run%2F1/0"
    assert second.address == "agent://[fe80::1]:29500/corefw/a%20run%2F1/1"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("RANK", "-1", "RANK='-1' is no number from 0 on"),
        ("WORLD_SIZE", "0", "WORLD_SIZE='0' is no number from 1 on"),
        ("RANK", "4", "RANK=4 isn't one of 4 processes"),
        ("LOCAL_RANK", "", "LOCAL_RANK='' is no number from 0 on"),
        ("MASTER_PORT", "http", "MASTER_PORT='http' is no number"),
        ("MASTER_ADDR", "", "MASTER_ADDR is unset"),
        ("LOCAL_WORLD_SIZE", "1", "LOCAL_RANK=1 isn't one of 1 processes"),
    ],
)
def test_a_launch_that_makes_no_sense_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        _launch(monkeypatch, **{name: value})


def test_a_process_that_nobody_launched_has_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _launch(monkeypatch, RANK="", WORLD_SIZE="") is None
