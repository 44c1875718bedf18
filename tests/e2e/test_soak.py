"""Many requests of every kind against a real server; what is left when all have ended or gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from corefw.testing.server_process import Server, serving
from corefw.testing.tiny_models import write_tiny_llama
from tests.e2e.storm import Tally, storm
from tests.sample_plugins.install import install_sample

# A second thousand requests may not make a process this much larger than the first did: allocators keep some slack.
GROWTH_LIMIT_BYTES = 12 * 2**20
NUM_POOL_THREADS = 4  # of the front end: they render chats
FLAGS = (
    "--dtype", "float32", "--served-model-name", "tiny", "--max-model-len", "200", "--max-num-seqs", "16",
    "--max-num-batched-tokens", "64", "--num-gpu-blocks-override", "40", "--scheduling-policy", "priority",
    "--plugins", "+inside",
)  # fmt: skip


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A tiny model, and a cache that is too small for all at once."""
    site = tmp_path / "site"
    install_sample("inside", site)
    model = write_tiny_llama(tmp_path / "model")
    with serving(str(model), *FLAGS, env={"PYTHONPATH": str(site)}) as running:
        yield running


def test_three_hundred_requests_leave_nothing_behind(server: Server) -> None:
    _soak(server, [300])


@pytest.mark.slow
def test_two_thousand_requests_leave_nothing_behind_and_take_no_memory(server: Server) -> None:
    after_one, after_two = _soak(server, [1000, 1000])
    assert after_one.keys() == after_two.keys()
    growth = {pid: after_two[pid] - size for pid, size in after_one.items()}
    assert max(growth.values()) < GROWTH_LIMIT_BYTES, growth


def _soak(server: Server, rounds: list[int]) -> list[dict[int, int]]:
    """Bytes of each process after each round."""
    tally, sizes = Tally(), []
    _warm_up(server, tally)
    before = _inside(server)
    for seed, num_requests in enumerate(rounds):
        asyncio.run(storm(server.url, "tiny", num_requests, seed=seed, tally=tally))
        server.wait_idle(30)
        _assert_as_before(_inside(server), before)
        sizes.append({pid: _resident_bytes(pid) for pid in (server.process.pid, *server.children())})
    assert tally.wrong == []
    assert min(tally.num_answered, tally.num_left, tally.num_refused) > sum(rounds) / 30
    _check_counters(server, tally)
    assert _complete(server) == 200
    assert "Traceback" not in server.log
    return sizes


def _complete(server: Server) -> int:
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 1}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code


def _warm_up(server: Server, tally: Tally) -> None:
    """What is made at the first request of its kind is there before anything is counted."""
    asyncio.run(storm(server.url, "tiny", 24, seed=99, tally=tally))
    server.wait_idle(30)


def _assert_as_before(now: dict[str, Any], before: dict[str, Any]) -> None:
    """A pool starts each of its threads when it is first short of one; nothing else may grow."""
    assert [now["tasks"], now["files"]] == [before["tasks"], before["files"]]
    front_end, *others = [new - old for new, old in zip(now["threads"], before["threads"], strict=True)]
    assert front_end <= NUM_POOL_THREADS
    assert max(others) <= 0


def _inside(server: Server) -> dict[str, Any]:
    """What a request that isn't over would add to."""
    pids = (server.process.pid, *server.children())
    return {
        "tasks": httpx.get(f"{server.url}/sample/tasks").json(),
        "threads": [len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in pids],
        "files": [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids],
    }


def _resident_bytes(pid: int) -> int:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def _check_counters(server: Server, tally: Tally) -> None:
    """Every sequence ended once, for the reason that its client saw."""
    reasons = ("stop", "length", "abort", "error")
    ended = {reason: server.metric(_ended(reason)) for reason in reasons}
    assert ended["error"] == 0
    assert ended["stop"] >= tally.reasons["stop"]
    assert ended["length"] >= tally.reasons["length"]
    assert tally.num_answered <= sum(ended.values()) <= tally.num_answered + tally.num_left
    assert server.metric("corefw:e2e_request_latency_seconds_count") == sum(ended.values())
    assert server.metric("corefw:num_preemptions_total") > 0
    assert ended["abort"] > 0


def _ended(reason: str) -> str:
    return f'corefw:requests_total{{finish_reason="{reason}",model_name="tiny"}}'
