"""How long each stage of a start took."""

from __future__ import annotations

import re
import time

from corefw.observability.stage_times import StageTimes


def _seconds(times: StageTimes) -> dict[str, float]:
    total, parts = re.fullmatch(r"([\d.]+) s \((.*)\)", str(times)).groups()  # type: ignore[union-attr]
    found = {name: float(took) for name, took in re.findall(r"([^,]+?) ([\d.]+) s(?:, )?", parts)}
    return {"total": float(total), **found}


def test_stages_add_up_and_one_that_is_entered_again_counts_once() -> None:
    times = StageTimes("one", time.perf_counter() - 10)
    times.enter("two")
    time.sleep(0.03)
    times.enter("one")
    took = _seconds(times)
    assert list(took) == ["total", "one", "two"]
    assert took["one"] >= 10
    assert took["two"] >= 0.03
    assert abs(took["total"] - took["one"] - took["two"]) < 0.02


def test_a_process_begins_when_it_was_started() -> None:
    age_s = _seconds(StageTimes.of_process("beginning"))["beginning"]
    assert age_s > 0.05
    time.sleep(0.1)
    assert _seconds(StageTimes.of_process("beginning"))["beginning"] >= age_s + 0.05
