"""The benchmark of what a step costs the host runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.policy.sources import ROOT


def test_a_small_run_times_every_part_of_a_step_over_all_loads(tmp_path: Path) -> None:
    output, picture = tmp_path / "host.json", tmp_path / "host.svg"
    script = str(ROOT / "benchmarks" / "host_cost.py")
    small = ["--running", "4", "--context", "20", "--waiting", "2", "--contexts", "20", "40", "--num-steps", "8"]
    command = [sys.executable, script, *small, "--output-json", str(output), "--plot", str(picture)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "| schedule + update | input preparation |" in done.stdout
    series = json.loads(output.read_text())
    assert {name: len(points) for name, points in series.items()} == {
        "running": 5,
        "waiting": 1,
        "context": 2,
        "turnover": 3,
    }
    costs = [cost["median_ms"] for points in series.values() for point in points for cost in point["corefw"].values()]
    assert len(costs) == 11 * 8
    assert all(cost > 0 for cost in costs)
    assert picture.read_text().startswith("<?xml")
