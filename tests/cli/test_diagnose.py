from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from corefw.cli import diagnose
from corefw.cli.diagnose import _joined, _Rank
from corefw.errors import ConfigError
from corefw.runtime.distributed.broadcast_queue import BroadcastWriter, QueueFds
from corefw.runtime.distributed.comm_check import CheckTask
from corefw.runtime.distributed.rendezvous import LocalMeeting

_LIMIT_S = 90.0


def _namespace(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    diagnose.add_arguments(parser)
    return parser.parse_args(words)


def test_ranks_that_can_talk_are_told_so_layer_by_layer(capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose.run(_namespace("comm", "--json", "--plugins", "")) == 0
    report = json.loads(capsys.readouterr().out)
    states = {layer["name"]: layer["state"] for layer in report["layers"]}
    assert (report["ok"], report["failed"]) == (True, None)
    assert list(states) == ["torch", "queue", "meeting", "gloo", "device", "network", "shm"]
    assert [states[name] for name in ("torch", "queue", "meeting", "gloo", "device")] == [*["ok"] * 4, "not here"]
    assert "sums, gathers and plain data are right" in report["layers"][3]["told"]


@pytest.mark.parametrize("number", ["1", "65"])
def test_fewer_than_two_ranks_have_nobody_to_talk_to(number: str) -> None:
    with pytest.raises(ConfigError, match=f"--ranks {number} is none of 2 to 64"):
        diagnose.run(_namespace("comm", "--ranks", number))


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "1e9"])
def test_a_time_in_which_nothing_can_be_done_is_refused(seconds: str) -> None:
    with pytest.raises(ConfigError, match=r"--timeout .* must be above 0 and at most 3600 seconds"):
        diagnose.run(_namespace("comm", "--timeout", seconds))


@pytest.fixture
def lonely() -> Iterator[_Rank]:
    """One of two ranks; the other never comes."""
    queue = QueueFds.create(1)
    with LocalMeeting() as meeting, closing(BroadcastWriter(queue)) as writer:
        task = CheckTask(
            rank=0,
            size=2,
            local_address=meeting.address,
            device_address=meeting.address,
            network_address="tcp://127.0.0.1:1",
            queue=queue.of_reader(0).to_text(),
            timeout_s=2.0,
            platform="cpu",
            allow="",
        )
        writer.send([hashlib.sha256(b"x").hexdigest().encode(), b"x"])
        with closing(_Rank(task, queue)) as rank:
            yield rank
    queue.close()


def test_the_layer_at_fault_is_named_with_a_remedy_and_those_above_are_not_tried(lonely: _Rank) -> None:
    lonely.wait(time.monotonic() + _LIMIT_S)
    failed = _joined("meeting", [lonely])
    assert (failed.state, "/proc/PID/fd" in failed.remedy) == ("failed", True)
    assert "imeout" in failed.told
    assert [_joined(name, [lonely]).state for name in ("torch", "queue", "gloo")] == ["ok", "ok", "not tried"]


@pytest.mark.slow
def test_a_layer_in_which_a_rank_hangs_is_at_fault(lonely: _Rank) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while "meeting" not in lonely.news and time.monotonic() < deadline:
        time.sleep(0.02)
    lonely.wait(time.monotonic())
    told = _joined("meeting", [lonely])
    assert (told.state, told.told) == ("failed", "rank 0 hung and was killed")
