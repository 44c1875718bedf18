"""Each benchmark, run once and small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from corefw.cli.main import main
from corefw.testing.server_process import Server
from tests.cli.commands import corefw

LOAD = ("--num-prompts", "12", "--random-input-len", "20", "--random-output-len", "6", "--ignore-eos", "--disable-tqdm")


def bench_serve(server: Server, folder: Path, *flags: str) -> dict[str, float]:
    shown = corefw(
        "bench", "serve", "--port", str(server.port), *LOAD, *flags,
        "--result-dir", str(folder), "--result-filename", "result.json", "--save-detailed",
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    assert "CPU time per output token" in shown.stdout
    result: dict[str, float] = json.loads((folder / "result.json").read_text())
    return result


def test_serve_measures_a_server(tiny_server: Server, tiny: Path, tmp_path: Path) -> None:
    flags = ("--tokenizer", str(tiny), "--max-concurrency", "4", "--goodput", "e2el:60000", "--metadata", "host=here")
    result = bench_serve(tiny_server, tmp_path, *flags)
    assert (result["completed"], result["failed"], result["host"]) == (12, 0, "here")
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (240, 72)
    assert result["request_goodput"] == result["request_throughput"] > 0
    assert 0 < result["median_ttft_ms"] < result["median_e2el_ms"] < result["duration"] * 1000
    assert result["client_cpu_us_per_token"] > 0
    assert len(result["ttfts"]) == 12  # type: ignore[arg-type]


def test_a_picture_comes_in_the_format_of_its_name(tiny_server: Server, tiny: Path, tmp_path: Path) -> None:
    for name, beginning in (("latencies.png", b"\x89PNG"), ("latencies.svg", b"<?xml")):
        bench_serve(tiny_server, tmp_path, "--tokenizer", str(tiny), "--plot", str(tmp_path / name))
        assert (tmp_path / name).read_bytes().startswith(beginning)
    texts = (tmp_path / "latencies.svg").read_text()
    assert all(label in texts for label in ("time to first token (ms)", "whole request (ms)", "inf requests/s"))


def test_serve_asks_the_server_how_long_words_are(tiny_server: Server, tmp_path: Path) -> None:
    flags = ("--backend", "openai-chat", "--request-rate", "200", "--burstiness", "2")
    result = bench_serve(tiny_server, tmp_path, *flags)
    framing = len("<|im_start|>user\n") + len("\n<|im_start|>assistant\n")
    assert result["total_input_tokens"] / 12 == pytest.approx(20 + framing, abs=framing)
    assert result["total_output_tokens"] == 72


def test_failed_requests_are_counted_and_told(tiny_server: Server, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "short", "output_tokens": 3}\n' + json.dumps({"prompt": "x" * 400}) + "\n")
    flags = ("--dataset-name", "custom", "--dataset-path", str(prompts))
    shown = corefw("bench", "serve", "--port", str(tiny_server.port), *LOAD, *flags)
    assert shown.returncode == 1
    assert "context length is 256" in shown.stderr
    figures = dict(line.rsplit(None, 1) for line in shown.stdout.splitlines() if "requests  " in line)
    assert figures == {"Successful requests": "6", "Failed requests": "6"}


def test_throughput_and_latency_give_figures(tiny: Path, tmp_path: Path) -> None:
    engine = ("--model", str(tiny), "--kv-cache-memory", "8MiB", "--output-json", str(tmp_path / "out.json"))
    sizes = ("--input-len", "10", "--output-len", "4")
    assert main(["bench", "throughput", *engine, *sizes, "--num-prompts", "3"]) == 0
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["total_num_tokens"] == 3 * 14
    assert result["output_tokens_per_second"] == pytest.approx(12 / result["elapsed_time"])
    assert main(["bench", "latency", *engine, *sizes, "--batch-size", "2", "--num-iters", "3"]) == 0
    result = json.loads((tmp_path / "out.json").read_text())
    assert len(result["latencies"]) == 3
    assert min(result["latencies"]) <= result["p50"] <= max(result["latencies"])


def test_step_says_where_the_time_goes(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = ("--model", str(tiny), "--kv-cache-memory", "8MiB", "--output-json", str(tmp_path / "out.json"))
    assert main(["bench", "step", *engine, "--batch-size", "2", "--input-len", "10", "--num-steps", "4"]) == 0
    result = json.loads((tmp_path / "out.json").read_text())
    stages = result["stages_ms"]
    outer = [stages[stage] for stage in ("schedule", "execute", "sample", "update")]
    assert 0 < sum(outer) <= stages["step"] * 1.5
    assert 0 < sum(stages[stage] for stage in ("batch", "inputs", "metadata", "model")) <= stages["execute"] * 1.5
    assert {"name", "calls", "ms"} == set(result["operators"][0])
    shown = capsys.readouterr().out
    assert "| execute: model |" in shown
    assert "| aten::" in shown


def test_startup_measures_starts_and_tells_why_one_failed(tiny: Path, tmp_path: Path) -> None:
    flags = ("--num-iters", "1", "--output-json", str(tmp_path / "out.json"))
    shown = corefw("bench", "startup", "--model", str(tiny), *flags, "--", "--kv-cache-memory", "8MiB")
    assert shown.returncode == 0, shown.stderr
    figures = json.loads((tmp_path / "out.json").read_text())
    assert 0 < figures["first"] < figures["first token"]
    assert figures["import torch"] > 0
    assert figures["memory (MiB)"] > 50
    assert "core started in" in shown.stdout
    assert "loading the model" in shown.stdout
    shown = corefw("bench", "startup", "--model", "/no/such/model")
    assert shown.returncode == 1
    assert "/no/such/model" in shown.stderr
