"""lm-eval gives the demo model the same scores over HTTP as it gives transformers on the same weights.

Needs ``pip install 'corefw[eval]'``. The tasks and their data lie beside this file; nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from corefw.config.args import UserArgs
from corefw.engine.resolver import resolve_model
from corefw.plugin_system.manager import PluginManager
from corefw.testing.server_process import Server
from tests.e2e.driver import DEMO_MODEL
from tests.e2e.reference import reference_model

pytestmark = [pytest.mark.slow, pytest.mark.model]
TASKS = ("corefw_choices", "corefw_continuations")
METRIC = "exact_match,first word"
TOLERANCE = 1e-3
Report = dict[str, Any]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model as a directory that transformers loads, dequantised by gguf-py."""
    folder = tmp_path_factory.mktemp("weights")
    info, _ = resolve_model(UserArgs.from_keywords(model=DEMO_MODEL), PluginManager.discover(""))
    file = Path(info.files.weights[0])
    reference_model(file).save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tasks, with the place of their data filled in."""
    folder = tmp_path_factory.mktemp("tasks")
    shutil.copytree(Path(__file__).parent / "eval_tasks", folder, dirs_exist_ok=True)
    for task in folder.glob("*.yaml"):
        task.write_text(task.read_text().replace("test: ", f"test: {folder}/", 1))
    return folder


def evaluate(tasks: Path, output: Path, kind: str, batch_size: int, **arguments: object) -> Report:
    """What ``lm_eval`` reports: ``results`` by task, and ``samples`` by task."""
    settings = ",".join(f"{key}={value}" for key, value in arguments.items())
    command = [sys.executable, "-m", "lm_eval", "run", "--model", kind, "--model_args", settings]
    command += ["--tasks", ",".join(TASKS), "--include_path", str(tasks)]
    command += ["--output_path", str(output), "--log_samples", "--batch_size", str(batch_size), "--device", "cpu"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(output / "home")}
    run = subprocess.run(
        command, env={**os.environ, **offline}, cwd=tasks, capture_output=True, text=True, timeout=900, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    (result,) = output.rglob("results_*.json")
    samples = {task: _lines(output, task) for task in TASKS}
    return {"results": json.loads(result.read_text())["results"], "samples": samples}


def _lines(output: Path, task: str) -> list[dict[str, Any]]:
    (file,) = output.rglob(f"samples_{task}_*.jsonl")
    return sorted(map(json.loads, file.read_text().splitlines()), key=lambda sample: sample["doc_id"])


@pytest.fixture(scope="module")
def theirs(weights: Path, tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return evaluate(tasks, tmp_path_factory.mktemp("theirs"), "hf", 1, pretrained=weights, dtype="float32")


@pytest.fixture(scope="module", params=[(1, 1), (3, 4)], ids=["alone", "crowd"])
def ours(
    request: pytest.FixtureRequest, server: Server, weights: Path, tasks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Report:
    """Over HTTP: one request after the other, and several prompts in each of several requests."""
    batch_size, num_concurrent = request.param
    return evaluate(
        tasks, tmp_path_factory.mktemp("ours"), "local-completions", batch_size, model="demo", tokenizer=weights,
        base_url=f"{server.url}/v1/completions", tokenizer_backend="huggingface", max_retries=1,
        num_concurrent=num_concurrent,
    )  # fmt: skip


def test_scores_are_those_of_transformers(ours: Report, theirs: Report) -> None:
    for task in TASKS:
        assert _scores(ours, task) == _scores(theirs, task)
    scores = [theirs["results"][task][key] for task, key in zip(TASKS, ("acc,none", METRIC), strict=True)]
    assert all(0.3 < score < 1 for score in scores), "neither nothing nor everything shows a difference"


def _scores(report: Report, task: str) -> dict[str, float]:
    return {key: value for key, value in report["results"][task].items() if "," in key and "stderr" not in key}


def test_each_loglikelihood_is_that_of_transformers(ours: Report, theirs: Report) -> None:
    pairs = list(zip(_answers(ours, TASKS[0]), _answers(theirs, TASKS[0]), strict=True))
    assert len(pairs) == 16
    for mine, other in pairs:
        for (loglikelihood, is_greedy), (expected, expected_greedy) in zip(mine, other, strict=True):
            assert float(loglikelihood) == pytest.approx(float(expected), abs=TOLERANCE)
            assert is_greedy == expected_greedy


def _answers(report: Report, task: str) -> list[Any]:
    return [sample["filtered_resps"] for sample in report["samples"][task]]


def test_each_continuation_is_that_of_transformers(ours: Report, theirs: Report) -> None:
    texts, expected = ([sample["resps"][0][0] for sample in report["samples"][TASKS[1]]] for report in (ours, theirs))
    assert texts == expected
    assert all(text.strip() for text in texts)
