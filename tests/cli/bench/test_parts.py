"""Arrivals, prompts and figures of ``corefw bench serve``."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from corefw.cli.bench.arrivals import arrival_times
from corefw.cli.bench.load import Measured
from corefw.cli.bench.pictures import require
from corefw.cli.bench.prompts import IdPrompts, WordPrompts, add_dataset_flags, make_prompts
from corefw.cli.bench.summary import parse_goodput, percentile, summarise
from corefw.errors import ConfigError


def options(*flags: str, num_prompts: int = 12, seed: int = 0) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_dataset_flags(parser)
    return argparse.Namespace(num_prompts=num_prompts, seed=seed, **vars(parser.parse_args(flags)))


def gaps(burstiness: float) -> list[float]:
    times = arrival_times(4000, 10.0, burstiness, random.Random(1))
    return [after - before for before, after in itertools.pairwise(times)]


def test_an_infinite_rate_sends_everything_at_once() -> None:
    assert arrival_times(3, math.inf, 1.0, random.Random(0)) == [0.0] * 3


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0])
def test_gaps_have_the_rates_mean_and_the_burstiness_spread(burstiness: float) -> None:
    found = gaps(burstiness)
    assert statistics.fmean(found) == pytest.approx(0.1, rel=0.06)
    assert statistics.stdev(found) == pytest.approx(0.1 / math.sqrt(burstiness), rel=0.1)


@pytest.mark.parametrize("kind", ["linear", "exponential"])
def test_a_ramp_goes_from_the_first_rate_to_the_last(kind: str) -> None:
    times = arrival_times(2001, 1.0, 1000.0, random.Random(0), (kind, 1.0, 100.0))
    assert times[1] - times[0] == pytest.approx(1.0, rel=0.15)
    assert times[-1] - times[-2] == pytest.approx(0.01, rel=0.15)
    middle = 50.5 if kind == "linear" else 10.0
    assert times[1001] - times[1000] == pytest.approx(1 / middle, rel=0.15)


@pytest.mark.parametrize(("rate", "burstiness"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0)])
def test_rates_must_be_above_zero(rate: float, burstiness: float) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        arrival_times(2, rate, burstiness, random.Random(0))


def test_random_prompts_have_the_lengths_asked_for() -> None:
    flags = ("--random-input-len", "20", "--random-output-len", "7", "--random-prefix-len", "5")
    prompts = make_prompts(options(*flags), IdPrompts(range(10, 500)))
    assert {len(item.prompt) for item in prompts} == {25}
    assert {item.max_tokens for item in prompts} == {7}
    assert len({tuple(item.prompt[:5]) for item in prompts}) == 1
    assert len({tuple(item.prompt[5:]) for item in prompts}) == 12


def test_the_range_ratio_varies_lengths_on_both_sides() -> None:
    prompts = make_prompts(
        options("--random-input-len", "100", "--random-range-ratio", "0.5", num_prompts=200), IdPrompts(range(99))
    )
    lengths = [len(item.prompt) for item in prompts]
    assert 50 <= min(lengths) < 70
    assert 130 < max(lengths) <= 150


def test_prefixes_are_shared_evenly() -> None:
    flags = ("--dataset-name", "prefix_repetition", "--prefix-repetition-num-prefixes", "3")
    prompts = make_prompts(options(*flags), IdPrompts(range(999)))
    prefixes = [tuple(item.prompt[:256]) for item in prompts]
    assert sorted(prefixes.count(prefix) for prefix in set(prefixes)) == [4, 4, 4]


def test_the_same_seed_gives_the_same_prompts() -> None:
    first, again, other = (make_prompts(options(seed=seed), WordPrompts(1.3)) for seed in (4, 4, 5))
    assert first == again != other
    assert len(str(first[0].prompt).split()) == round(1024 / 1.3)


def test_files_are_read(tmp_path: Path) -> None:
    share, custom = tmp_path / "share.json", tmp_path / "custom.jsonl"
    turns = [{"from": "human", "value": "why?"}, {"from": "gpt", "value": "because " * 10}]
    share.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}]))
    custom.write_text('{"prompt": "a"}\n{"prompt": "b", "output_tokens": 3}\n')
    flags = ("--dataset-name", "sharegpt", "--dataset-path", str(share))
    assert [(p.prompt, p.max_tokens) for p in make_prompts(options(*flags, num_prompts=2), WordPrompts())] == [
        ("why?", 20), ("why?", 20),
    ]  # fmt: skip
    flags = ("--dataset-name", "custom", "--dataset-path", str(custom))
    assert [(p.prompt, p.max_tokens) for p in make_prompts(options(*flags, num_prompts=3), WordPrompts())] == [
        ("a", 256), ("b", 3), ("a", 256),
    ]  # fmt: skip


def test_a_file_that_is_missing_or_of_another_kind_is_named(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text('{"text": "a"}\n')
    broken = tmp_path / "broken"
    broken.write_text("not JSON")
    for path, said in ((tmp_path / "none", "none"), (wrong, "wrong.jsonl"), (broken, "broken")):
        with pytest.raises(ConfigError, match=said):
            make_prompts(options("--dataset-name", "custom", "--dataset-path", str(path)), WordPrompts())
    with pytest.raises(ConfigError, match="needs --dataset-path"):
        make_prompts(options("--dataset-name", "sharegpt"), WordPrompts())


def test_percentiles_lie_between_neighbours() -> None:
    assert [percentile([4.0, 1.0, 3.0, 2.0], p) for p in (0, 50, 100)] == [1.0, 2.5, 4.0]
    assert percentile([], 99) == 0.0


def test_figures_are_those_of_the_requests_that_worked() -> None:
    measured = [
        Measured(ttft_s=0.1, itl_s=[0.2, 0.3], latency_s=0.6, num_prompt_tokens=10, num_output_tokens=3),
        Measured(ttft_s=0.3, itl_s=[], latency_s=0.3, num_prompt_tokens=10, num_output_tokens=1),
        Measured(error="400: no"),
    ]
    result = summarise(measured, 2.0, [99.0], parse_goodput(["ttft:200", "tpot:250"]))
    assert (result["completed"], result["failed"]) == (2, 1)
    assert (result["output_throughput"], result["total_token_throughput"]) == (2.0, 12.0)
    assert result["mean_ttft_ms"] == pytest.approx(200)
    assert result["mean_tpot_ms"] == pytest.approx(250)
    assert result["median_itl_ms"] == pytest.approx(250)
    assert result["p99_e2el_ms"] == pytest.approx(597)
    assert result["request_goodput"] == 0.5


def test_a_goodput_of_another_form_is_refused() -> None:
    assert parse_goodput(["ttft:200", "e2el:3.5"]) == {"ttft": 200.0, "e2el": 3.5}
    for word in ("ttft", "ttft:x", "speed:3", "tpot:-1"):
        with pytest.raises(ConfigError, match="write ttft:MS"):
            parse_goodput([word])


def test_a_picture_that_cannot_be_made_is_told_before_the_benchmark() -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None\nfrom corefw.cli.main import main\n"
        "sys.exit(main(['bench', 'serve', '--model', 'm', '--plot', 'x.png']))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert shown.returncode == 1
    assert "corefw[bench]" in shown.stderr


def test_a_picture_of_no_known_format_or_directory_is_told_before_the_benchmark(tmp_path: Path) -> None:
    require(tmp_path / "x.PNG")
    with pytest.raises(ConfigError, match=r"x\.foo.*\.png"):
        require(tmp_path / "x.foo")
    with pytest.raises(ConfigError, match="no directory"):
        require(tmp_path / "nowhere" / "x.png")
