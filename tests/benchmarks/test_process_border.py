"""The benchmarks of the border between processes run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.policy.sources import ROOT


def _run(script: str, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_small_round_gives_steps_per_second_on_both_sides_of_the_border(tmp_path: Path) -> None:
    output = tmp_path / "border.json"
    small = ["--rounds", "1", "--num-requests", "4", "--prompt-len", "8", "--output-len", "16"]
    table = _run("process_border.py", *small, "--output-json", str(output))
    assert "| corefw through the border |" in table
    rates = json.loads(output.read_text())["rounds"]
    assert {name: len(rounds) for name, rounds in rates.items()} == {
        "corefw in process": 1,
        "corefw through the border": 1,
    }
    assert all(rate > 0 for rounds in rates.values() for rate, _ in rounds)


def test_large_arrays_arrive_whole_by_both_ways() -> None:
    figures = json.loads(_run("large_arrays.py", "--repeats", "1", "--sizes", "1"))
    assert set(figures["1 MiB"]) == {"zmq", "memfd"}
