"""The comparison with other engines: its turns, its promises, its page, and a small run of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.comparison.criteria import Criterion, criteria, ratio_of
from benchmarks.comparison.process import ChildProcess, EngineError, EngineProcess, Generated
from benchmarks.comparison.prompts import Prompts
from benchmarks.comparison.report import markdown, promises
from benchmarks.comparison.rounds import MACHINE, Measurements, take_turns
from corefw.testing.tiny_models import write_tiny_llama
from tests.policy.sources import ROOT

KINDS = {
    "corefw-bf16": "bf16", "corefw-gguf": "gguf", "vllm-bf16": "bf16", "openvino-int8": "int8", "llama-gguf": "gguf",
}  # fmt: skip
MORE_IS_BETTER = ("single decode_deep", "single decode_empty", "at_once tokens_per_s", "server tokens_per_s")
LESS_IS_BETTER = ("single ttft_ms", "shared cold_s", "shared warm_s", "server itl_ms", "server ttft_p99_ms")


def measured_with(own: float, peers: float) -> Measurements:
    """corefw so much faster than a machine of speed one, and its peers, in three rounds."""
    measured = Measurements()
    for name in [*KINDS, MACHINE]:
        speed = 1.0 if name == MACHINE else own if name.startswith("corefw") else peers
        for round_ in range(3):
            varied = speed * (1 + round_ / 100)
            measured.add(name, dict.fromkeys(MORE_IS_BETTER, 100 * varied))
            measured.add(name, dict.fromkeys(LESS_IS_BETTER, 100 / varied))
    for name in ("corefw-bf16", "corefw-gguf"):
        for way in ("library", "server"):
            measured.add(
                name, {f"start {way}_cold_s": 3 / own, f"start {way}_s": 3 / own, f"memory {way}_bytes": 2e9 / own}
            )
        measured.add(name, {"weights bytes": 270e6, "kv_cache bytes": 2**28, "accuracy perplexity": 10 + 0.3 / own})
    for name in ("corefw-float32", "corefw-int8", "corefw-int4"):
        measured.add(name, {"accuracy perplexity": 10.0 if name == "corefw-float32" else 10 + 0.6 / own})
    measured.add(MACHINE, {"start import_torch_s": 1.0})
    return measured


def host_with(cost_ms: float) -> dict[str, object]:
    def point(waiting: int, context: int) -> dict[str, object]:
        cost = cost_ms * (1 + waiting / 100_000)
        parts = {part: {"median_ms": cost / 5} for part in ("schedule", "update", "batch", "inputs", "metadata")}
        return {"running": 256, "waiting": waiting, "context": context, "corefw": parts}

    return {"waiting": [point(10, 512), point(10_000, 512)], "context": [point(10, 128), point(10, 8192)]}


def test_all_promises_are_kept_by_an_engine_that_is_fast_enough_and_none_by_a_slow_one() -> None:
    fast = criteria(measured_with(10, 1), KINDS, {"second": measured_with(10, 1)}, host_with(0.5))
    assert [one.name for one in fast if not one.passed] == []
    slow = criteria(measured_with(0.5, 1), KINDS, {"second": measured_with(0.5, 1)}, host_with(5))
    assert [one.name for one in slow if one.passed] == ["host, 256 running: growth with waiting",
                                                        "host, 256 running: growth with context"]  # fmt: skip
    assert len({one.name for one in fast}) == len(fast) == 41


def test_a_promise_about_what_was_not_measured_is_neither_kept_nor_broken() -> None:
    found = criteria(Measurements(), KINDS, {"second": Measurements()}, None)
    assert {one.passed for one in found} == {None}
    assert len(found) == 41


def test_promises_about_the_host_are_read_from_what_its_benchmark_writes() -> None:
    host = json.loads((ROOT / "benchmarks" / "host_cost.json").read_text(encoding="utf-8"))
    found = [one for one in criteria(Measurements(), KINDS, {}, host) if one.name.startswith("host")]
    assert len(found) == 4
    assert all(one.value for one in found)


def test_a_ratio_is_of_figures_of_one_round_against_the_peer_with_the_best_median() -> None:
    measured = Measurements()
    for own, one, other in ((10, 5, 8), (30, 10, 9), (8, 100, 4)):
        for name, value in (("corefw", own), ("one", one), ("other", other)):
            measured.add(name, {"rate": float(value)})
    ratio = ratio_of(measured, "rate", "corefw", ["one", "other"], more_is_better=True)
    assert (ratio.value, ratio.spread) == (2.0, (0.08, 3.0))  # 2, 3 and 0.08 of `one`
    assert "one" in ratio.note
    less = ratio_of(measured, "rate", "corefw", ["one", "other"], more_is_better=False)
    assert "other" in less.note


def test_engines_take_turns_in_going_first_and_one_that_fails_drops_out() -> None:
    seen: list[tuple[str, int]] = []

    def work(name: str, speed: float, round_: int) -> Mapping[str, float]:
        seen.append((name, round_))
        if name == "b" and round_ == 1:
            raise EngineError("no more")
        return {"speed rate": speed + round_}

    measured, runners = Measurements(), {"a": 1.0, "b": 2.0}
    take_turns("speed", runners, 3, measured, work)
    assert seen == [("b", -1), ("a", -1), ("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2)]
    assert measured.figures == {"speed rate": {"a": [1.0, 2.0, 3.0], "b": [2.0]}}
    assert measured.failures == [("b", "no more")]
    assert list(runners) == ["a"]


def test_the_page_has_a_row_for_each_engine_and_a_word_for_each_promise() -> None:
    measured = measured_with(10, 1)
    measured.samples["single tokens"] = {"corefw-gguf": [[1, 2, 3, 4]], "llama-gguf": [[1, 2, 9, 4]]}
    engines = {name: {"label": f"<{name}>", "weights": "the file", "version": "1"} for name in KINDS}
    sizes = {"rounds": 3, "single": [1, 2], "at_once": [3, 4, 5], "shared": [6, 7, 8, 9], "server": [1, 2, 3, 4]}
    result = {"machine": {"cpu": "A CPU", "cores": 2}, "sizes": sizes, "date": "today", "engines": engines}
    page = markdown(result, {"small": measured}, [Criterion("fast", 0.5, 1.0, True)])
    assert all(page.count(f"| <{name}> |") == 1 for name in KINDS)
    assert "corefw-gguf and llama-gguf: 0 of 1 outputs are equal, on average their first 50%" in page
    assert "| fast | 0.5 |  | ≥ 1 | **no** |  |" in page
    assert promises([Criterion("small", 0.5, 1.0, False), Criterion("lost", None, 1.0, False)])[2:] == [
        "| small | 0.5 |  | ≤ 1 | yes |  |",
        "| lost |  |  | ≤ 1 | not measured |  |",
    ]


def test_prompts_have_the_wanted_length_and_part_at_their_beginning(tmp_path: Path) -> None:
    prompts = Prompts(write_tiny_llama(tmp_path / "model"))
    left, right = prompts.make(64, "Left 1"), prompts.make(64, "Right 1")
    assert (len(left), len(right)) == (64, 64)
    assert left[:4] != right[:4]
    assert prompts.make(64, "Left 1") == left
    assert len(prompts.make(5000, "long")) == 5000


def test_rates_are_told_from_the_times_of_tokens() -> None:
    made = Generated(tokens=[[1, 2, 3], [4, 5, 6]], times_s=[[0.5, 1.0, 2.5], [1.0, 2.0, 3.0]], start_s=0.0)
    assert (made.ttft_s, made.decode_rate, made.elapsed_s) == (0.5, 1.0, 3.0)
    assert made.gaps_s == [0.5, 1.5, 1.0, 1.0]


def test_a_process_that_is_not_its_turn_takes_no_time(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time\nwhile True: print(time.time(), flush=True)"]
    log = tmp_path / "log"
    with ChildProcess(command, {}, log) as process:
        with process.awake():
            while not log.stat().st_size:
                time.sleep(0.01)
        time.sleep(0.1)  # a signal takes effect when the process is next scheduled
        asleep = log.stat().st_size
        time.sleep(0.2)
        assert log.stat().st_size == asleep
        with process.awake():
            while log.stat().st_size == asleep:
                time.sleep(0.01)
        assert process.memory() > 2**20
    assert not process.alive


def test_an_engine_that_dies_is_told_with_its_last_words(tmp_path: Path) -> None:
    process = EngineProcess(Path(sys.executable), "no_such_driver", {}, tmp_path / "log")
    with process, pytest.raises(EngineError, match="no_such_driver"):
        process.load(tmp_path, {})


def compare(tmp_path: Path, *flags: str) -> tuple[str, dict[str, object]]:
    model, output = write_tiny_llama(tmp_path / "model"), tmp_path / "results"
    command = [
        sys.executable, str(ROOT / "benchmarks" / "compare.py"), "--smoke", "--model", str(model),
        "--output", str(output), "--peers", str(tmp_path), "--engines", "corefw-bf16,transformers", *flags,
    ]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert run.returncode == 0, run.stderr
    assert (output / "comparison.md").read_text() in run.stdout
    result: dict[str, object] = json.loads((output / "comparison.json").read_text())
    return run.stdout, result


def test_a_small_run_gives_a_table_and_figures(tmp_path: Path) -> None:
    page, result = compare(tmp_path, "--parts", "single,at_once", "--no-pictures")
    assert "| corefw, bf16 |" in page
    assert "| transformers, bf16 |" in page
    (measured,) = result["models"].values()
    assert measured["failures"] == []
    for metric in ("single ttft_ms", "single decode_deep", "at_once tokens_per_s"):
        figures = measured["figures"][metric]
        assert all(len(figures[name]) == 1 and figures[name][0] > 0 for name in ("corefw-bf16", "transformers"))
    outputs = measured["samples"]["at once tokens"]
    assert [len(tokens) for tokens in outputs["corefw-bf16"]] == [4, 4]
    assert any("against the best 16-bit peer" in one["name"] and one["value"] for one in result["promises"])


@pytest.mark.slow
def test_a_small_run_of_all_scenarios_draws_pictures(tmp_path: Path) -> None:
    page, result = compare(tmp_path, "--parts", "start,single,at_once,shared,sweeps,accuracy,server")
    (measured,) = result["models"].values()
    assert measured["failures"] == []
    for metric in (
        "start server_cold_s",
        "start server_s",
        "memory server_bytes",
        "server tokens_per_s",
        "shared warm_s",
    ):
        assert measured["figures"][metric]["corefw-bf16"][0] > 0
    assert set(measured["figures"]["accuracy perplexity"]) == {"corefw-bf16", "transformers", "corefw-float32"}
    assert {path.name for path in (tmp_path / "results").glob("*.svg")} == {"model-curves.svg", "model-latencies.svg"}
    assert "](model-curves.svg)" in page
