"""Plugins that schedule, configure and change weights: real distributions, a real engine, a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from corefw.config.engine_config import EngineConfig
from corefw.errors import ConfigError, ModelFormatError
from corefw.llm import LLM, SamplingParams
from corefw.testing.server_process import Server, serving
from corefw.testing.tiny_models import write_tiny_llama
from tests.sample_plugins.install import install_sample
from tests.server.raw_client import send

PLUGINS = "house,weights,step-log,shortest-prompt,least-lost"
PROMPT = list(range(40, 80))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("site")
    for sample in ("house", "scheduling", "weights"):
        install_sample(sample, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VLLM_PLUGINS", raising=False)
        patch.syspath_prepend(folder)
        yield folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """With a head of its own, and a tensor that no Llama has."""
    path = write_tiny_llama(tmp_path_factory.mktemp("tiny"), tie_word_embeddings=False, max_position_embeddings=2048)
    file = path / "model.safetensors"
    save_file({**load_file(file), "extra.table": torch.zeros(3)}, file, metadata={"format": "pt"})
    return str(path)


def open_llm(model: str, **settings: Any) -> LLM:
    plugin_config = {"weights": {"skip_prefix": "extra."}, **settings.pop("plugin_config", {})}
    return LLM(model, dtype="float32", kv_cache_memory=2**26, plugins=PLUGINS, plugin_config=plugin_config, **settings)


def greedy(llm: LLM, *prompts: list[int], num_tokens: int = 6) -> list[list[int]]:
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    return [list(result.outputs[0].token_ids) for result in llm.generate(list(prompts), params)]


def reference(model: str, scale: float, *, neutral_norm: bool, num_tokens: int = 6) -> list[int]:
    loaded = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        loaded.lm_head.weight *= scale
        if neutral_norm:
            loaded.model.norm.weight.fill_(1.0)
        ids = torch.tensor([PROMPT])
        for _ in range(num_tokens):
            ids = torch.cat([ids, loaded(ids).logits[:, -1:].argmax(-1)], dim=1)
    return list(ids[0, len(PROMPT) :].tolist())


def log_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def reasons(config: EngineConfig) -> dict[str, tuple[str, str]]:
    return {what: (chosen, why) for what, chosen, why in config.decisions}


@pytest.mark.parametrize(("scale", "neutral_norm"), [(1.0, False), (-1.0, False), (-0.5, True)])
@pytest.mark.usefixtures("site")
def test_tensors_that_plugins_skip_change_drop_and_add_give_what_another_implementation_computes(
    model: str, scale: float, neutral_norm: bool
) -> None:
    settings = {"skip_prefix": "extra.", "head_scale": scale, "neutral_final_norm": neutral_norm}
    with open_llm(model, plugin_config={"weights": settings}) as llm:
        assert greedy(llm, PROMPT) == [reference(model, scale, neutral_norm=neutral_norm)]


@pytest.mark.usefixtures("site")
def test_a_model_that_does_not_fit_after_the_chain_names_the_chain(model: str) -> None:
    skipping = {"weights": {"skip_prefix": "model.layers.1.mlp"}}
    with pytest.raises(
        ModelFormatError, match=r"filter corefw-sample-weights/weights.*left out: model\.layers\.1\.mlp"
    ):
        open_llm(model, plugin_config=skipping)


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("plugin_config", "said"),
    [
        ({"house": {"seat": 3}}, r"plugin_config\['house'\]\['seat'\]: plugin house has no setting 'seat'.*seats"),
        ({"house": {"seats": "3"}}, r"plugin_config\['house'\]\['seats'\]: Expected `int`, got `str`"),
        ({"house": {"seats": 0}}, r"\['seats'\]: Expected `int` >= 1"),
        ({"house": {"models": {"a": 1}}}, r"\['models'\]: Expected `str`, got `int` - at `\$\[...\]`"),
        ({"horse": {"seats": 3}}, "no plugin 'horse' that is loaded has settings; did you mean house"),
        ({"house": 3}, "must be a mapping"),
    ],
)
def test_a_setting_that_no_plugin_takes_is_refused(model: str, plugin_config: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        open_llm(model, plugin_config=plugin_config)


@pytest.mark.usefixtures("site")
def test_a_plugins_defaults_have_reasons_and_give_way_to_the_users(model: str) -> None:
    house = {"house": {"seats": 3, "models": {"ours": model}}}
    with open_llm("ours", plugin_config=house, max_num_batched_tokens=100) as llm:
        config = llm.config
    assert (config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens) == (3, 100)
    told = reasons(config)
    assert told["scheduler.max_num_seqs"] == ("3", "plugin corefw-sample-house/house: the house has 3 seats")
    assert told["model reference"][0] == model
    assert (
        "'ours' stands for, by plugin corefw-sample-house/house: it is in the house's list"
        in (told["model reference"][1])
    )
    with open_llm(model, plugin_config=house, max_num_seqs=5) as llm:
        config = llm.config
    assert (config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens) == (5, 192)
    assert reasons(config)["scheduler.max_num_seqs"] == (
        "5",
        "set by the user; 3 was asked for by plugin corefw-sample-house/house: the house has 3 seats",
    )


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(("victim", "given_way"), [(None, 30), ("least-lost", 12)])
def test_a_plugin_says_who_gives_way_and_the_tokens_stay_the_same(
    model: str, tmp_path: Path, victim: str | None, given_way: int
) -> None:
    log = tmp_path / "steps"
    prompts = [list(range(50, 62)), list(range(100, 130))]
    small = {"block_size": 16, "num_gpu_blocks_override": 6, "full_sequence_must_fit": False, "max_model_len": 80}
    choice = {} if victim is None else {"scheduling_victim": victim}
    with open_llm(model, plugin_config={"step-log": {"path": str(log)}}, **small, **choice) as llm:
        crowded = greedy(llm, *prompts, num_tokens=40)
    began: dict[str, int] = {}
    for line in log_of(log):
        began = {**line["begin"], **began}
    first_victim = next(line["preempted"][0] for line in log_of(log) if line["preempted"])
    assert began[first_victim] == given_way
    with open_llm(model) as llm:
        assert crowded == greedy(llm, *prompts, num_tokens=40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(site: Path, model: str, folder: Path) -> Iterator[Server]:
    file = folder / "settings.yaml"
    file.write_text(
        f"""
dtype: float32
plugins:
  allow: {PLUGINS}
  house:
    models: {{ours: {model}}}
    seats: 7
  weights: {{skip-prefix: extra., head_scale: 1.0}}
  step-log: {{path: {folder}/steps}}
""",
        encoding="utf-8",
    )
    flags = ("--house.seats", "1", "--weights.head-scale=-1", "--scheduling-order", "shortest-prompt")
    with serving("ours", "--config", str(file), *flags, env={"PYTHONPATH": str(site)}) as running:
        yield running


def complete(server: Server, prompt: list[int], **fields: Any) -> dict[str, Any]:
    body = {"model": "ours", "prompt": prompt, "temperature": 0, "ignore_eos": True, "max_tokens": 6, **fields}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_server_takes_settings_from_its_file_and_from_flags_which_win(server: Server, model: str) -> None:
    answered = complete(server, PROMPT)["choices"][0]
    wanted = reference(model, -1.0, neutral_norm=False)
    assert answered["text"] == text_of(model, wanted)
    assert "settings of plugin house: models, seats" in server.log
    assert "scheduler.max_num_seqs: 1 (plugin corefw-sample-house/house: the house has 1 seats)" in server.log
    assert "scheduling policy (order): shortest-prompt (the value of --scheduling-order)" in server.log
    assert "weights: safetensors → filter corefw-sample-weights/weights → transform" in server.log


def text_of(model: str, ids: list[int]) -> str:
    from tokenizers import Tokenizer

    return str(Tokenizer.from_file(f"{model}/tokenizer.json").decode(ids))


def test_a_plugin_orders_the_queue(server: Server, folder: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        # Goes on until nobody listens any more.
        running = send(server, {"prompt": list(range(70, 73)), "max_tokens": 2000, "ignore_eos": True, "stream": True})
        server.wait_busy()
        waiting = [pool.submit(complete, server, list(range(100 + length, 100 + 2 * length))) for length in (60, 21)]
        deadline = time.monotonic() + 20
        while server.metric("corefw:num_requests_waiting") < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        running.close()
        for future in waiting:
            future.result()
    begun = [tokens for line in log_of(folder / "steps") for tokens in line["begin"].values()]
    assert begun[-2:] == [21, 60]


def corefw(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "corefw.cli.main", *words],
        env={**os.environ, "PYTHONPATH": str(site), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_help_of_a_command_lists_the_settings_of_the_plugins_that_it_would_load(site: Path) -> None:
    shown = corefw(site, "serve", "--plugins", "house,step-log", "--help").stdout
    assert "settings of plugin house:\n  What a house agrees on." in shown
    assert "--house.seats VALUE" in shown
    assert "--step-log.every-step VALUE" in shown
    assert "--weights." not in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--house.seats", "many"), "--house.seats: Expected `int`, got `str`"),
        (("--house.seats",), "--house.seats needs a value"),
        (("--house.seat=2",), "--house.seat: plugin house has no setting 'seat'; did you mean seats?"),
        (("--hous.seats=2",), "--hous.seats: no plugin 'hous' that is loaded has settings; did you mean house?"),
        (("--house.models", "{a"), "--house.models: JSON is malformed"),
    ],
)
def test_a_flag_that_no_plugin_takes_ends_the_command_with_a_sentence(
    site: Path, model: str, words: tuple[str, ...], said: str
) -> None:
    done = corefw(site, "generate", "--model", model, "hello", *words)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
