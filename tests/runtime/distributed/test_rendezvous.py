from __future__ import annotations

import re
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from corefw.config.rank_grid import RankGrid
from corefw.errors import ConfigError, EngineStartError
from corefw.runtime.distributed.rendezvous import LocalMeeting, is_local, open_store, own_host
from tests.runtime.distributed.ranks import join


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("file:///tmp/x", True),
        ("tcp://127.0.0.1:29500", True),
        ("tcp://localhost:29500", True),
        ("tcp://[::1]:29500", True),
        ("tcp://node-7:29500", False),
        ("agent://10.0.0.1:29500/prefix", False),
    ],
)
def test_an_address_tells_whether_all_ranks_are_here(address: str, local: bool) -> None:
    assert is_local(address) is local


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1:29500", "tcp://127.0.0.1", "tcp://:80", "tcp://h:99999", "file://", "ftp://h:1"]
)
def test_a_malformed_address_is_refused_with_those_that_are_accepted(address: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{address!r}; an address is file:///PATH, tcp://HOST:PORT")):
        open_store(address, rank=0, world_size=2, timeout_s=1)


def test_who_can_not_reach_the_meeting_says_so() -> None:
    with pytest.raises(EngineStartError, match=r"rank 1 of 2 can't reach tcp://127\.0\.0\.1:9"):
        open_store("tcp://127.0.0.1:9", rank=1, world_size=2, timeout_s=1)


def test_a_port_that_is_taken_is_said() -> None:
    other = TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    with pytest.raises(EngineStartError, match=f"rank 0 of 2 can't listen at tcp://127.0.0.1:{other.port}"):
        open_store(f"tcp://127.0.0.1:{other.port}", rank=0, world_size=2, timeout_s=1)


def test_two_meetings_at_one_agent_do_not_see_each_other() -> None:
    agent = TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    first, second = (
        open_store(f"agent://127.0.0.1:{agent.port}/{name}", rank=0, world_size=2, timeout_s=5) for name in "ab"
    )
    first.set("here/0", "1")
    assert first.check(["here/0"])
    assert not second.check(["here/0"])
    with pytest.raises(EngineStartError, match="didn't come: 1"):
        join(RankGrid(tensor=2), 0, f"agent://127.0.0.1:{agent.port}/c", timeout_s=0.5)


def test_a_local_meeting_has_no_name_in_any_folder_and_ends_with_its_maker() -> None:
    meeting = LocalMeeting()
    path = Path(meeting.address.removeprefix("file://"))
    assert path.exists()
    assert "memfd:" in str(path.readlink())
    meeting.close()
    meeting.close()
    assert not path.exists()


def test_a_rank_is_reached_at_the_address_that_leads_to_the_meeting_point() -> None:
    assert own_host("tcp://127.0.0.1:1") == "127.0.0.1"
    assert own_host("agent://127.0.0.2:1/x") == "127.0.0.1"
