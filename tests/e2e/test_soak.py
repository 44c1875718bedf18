"""Many requests of every kind against a real server; what is left when all have ended or gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from corefw.testing.server_process import Server, serving
from corefw.testing.tiny_models import write_tiny_llama
from tests.e2e.storm import Tally, storm
from tests.sample_plugins.install import install_sample

# A second thousand requests may not make a process larger by more than this share of it.
GROWTH_LIMIT = 0.02
NUM_CONNECTIONS = 200
NUM_POOL_THREADS = 4  # of a front end: they render chats
ONE_PAIR: tuple[str, ...] = ()
# Only the first of several API servers logs figures; without that they have the same tasks, whichever is asked.
SEVERAL = ("--data-parallel-size", "2", "--api-server-count", "2", "--disable-log-stats")
FLAGS = (
    "--dtype", "float32", "--served-model-name", "tiny", "--max-model-len", "200", "--max-num-seqs", "16",
    "--max-num-batched-tokens", "64", "--num-gpu-blocks-override", "40", "--scheduling-policy", "priority",
    "--plugins", "+inside",
)  # fmt: skip


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A tiny model, and a cache that is too small for all at once."""
    site = tmp_path / "site"
    install_sample("inside", site)
    model = write_tiny_llama(tmp_path / "model")
    with serving(str(model), *FLAGS, *request.param, env={"PYTHONPATH": str(site)}) as running:
        yield running


@pytest.mark.parametrize("server", [ONE_PAIR], indirect=True)
def test_three_hundred_requests_leave_nothing_behind(server: Server) -> None:
    _soak(server, [300], num_connections=24)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("server", [ONE_PAIR, SEVERAL], ids=["one-pair", "several"], indirect=True)
def test_two_thousand_requests_over_two_hundred_connections_take_no_memory(server: Server) -> None:
    sizes = _soak(server, [1000, 1000], NUM_CONNECTIONS)
    if _growth(*sizes) > GROWTH_LIMIT:  # what is made once, at whatever moment, isn't made again; a leak goes on
        sizes = _soak(server, [1000, 1000], NUM_CONNECTIONS)
    assert _growth(*sizes) < GROWTH_LIMIT


def _growth(before: dict[int, int], after: dict[int, int]) -> float:
    """Of the process that grew most, as a share of what it was."""
    assert before.keys() == after.keys()
    shares = {_what_runs(pid): (after[pid] - size) / size for pid, size in before.items()}
    print("growth of resident memory:", ", ".join(f"{what} {share:.2%}" for what, share in sorted(shares.items())))
    return max(shares.values())


def _soak(server: Server, rounds: list[int], num_connections: int) -> list[dict[int, int]]:
    """Bytes of each process after each round."""
    tally, sizes, already = Tally(), [], _ends(server)
    _warm_up(server, tally, num_connections)
    before = _inside(server)
    for seed, num_requests in enumerate(rounds):
        work = storm(server.url, "tiny", num_requests, seed=seed, tally=tally, num_connections=num_connections)
        asyncio.run(work)
        server.wait_idle(30)
        _assert_as_before(_inside(server), before)
        sizes.append({pid: _resident_bytes(pid) for pid in (server.process.pid, *server.children())})
    assert tally.wrong == []
    assert min(tally.num_answered, tally.num_left, tally.num_refused) > sum(rounds) / 30
    _check_counters(server, tally, already)
    assert _complete(server) == 200
    assert "Traceback" not in server.log
    return sizes


def _complete(server: Server) -> int:
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 1}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code


def _warm_up(server: Server, tally: Tally, num_requests: int) -> None:
    """What is made at the first request of its kind is there before anything is counted."""
    asyncio.run(storm(server.url, "tiny", num_requests, seed=99, tally=tally, num_connections=num_requests))
    server.wait_idle(30)


def _assert_as_before(now: dict[str, Any], before: dict[str, Any]) -> None:
    """A pool starts each of its threads when it is first short of one; nothing else may grow."""
    assert [now["tasks"], now["files"]] == [before["tasks"], before["files"]]
    more = {pid: num_threads - before["threads"][pid] for pid, num_threads in now["threads"].items()}
    assert max(more.values()) <= NUM_POOL_THREADS
    assert all(num_threads <= 0 for pid, num_threads in more.items() if "core_main" in _what_runs(pid))


def _inside(server: Server) -> dict[str, Any]:
    """What a request that isn't over would add to."""
    pids = (server.process.pid, *server.children())
    tasks = httpx.get(f"{server.url}/sample/tasks").json()
    time.sleep(2)  # until connections are closed, this one too, and what was counted is known to all
    return {
        "tasks": tasks,
        "threads": {pid: len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in pids},
        "files": {pid: len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids},
    }


def _what_runs(pid: int) -> str:
    module = next(word for word in Path(f"/proc/{pid}/cmdline").read_text().split("\0") if word.startswith("corefw."))
    return f"{module} {pid}"


def _resident_bytes(pid: int) -> int:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def _ends(server: Server) -> dict[str, float]:
    return {reason: server.metric(_ended(reason)) for reason in ("stop", "length", "abort", "error")}


def _check_counters(server: Server, tally: Tally, already: dict[str, float]) -> None:
    """Every sequence ended once, for the reason that its client saw."""
    ended = {reason: num_ends - already[reason] for reason, num_ends in _ends(server).items()}
    assert ended["error"] == 0
    assert ended["stop"] >= tally.reasons["stop"]
    assert ended["length"] >= tally.reasons["length"]
    assert tally.num_answered <= sum(ended.values()) <= tally.num_answered + tally.num_left
    deadline = time.monotonic() + 30  # until what one of several API servers counted is known to the other
    while server.metric("corefw:e2e_request_latency_seconds_count") != sum(_ends(server).values()):
        assert time.monotonic() < deadline, _ends(server)
        time.sleep(0.1)
    assert server.metric("corefw:num_preemptions_total") > 0
    assert ended["abort"] > 0


def _ended(reason: str) -> str:
    return f'corefw:requests_total{{finish_reason="{reason}",model_name="tiny"}}'
