"""Plugins that look into the engine, or change what it computes: real distributions, a real engine, a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import LlamaForCausalLM

from corefw.errors import ConfigError, RequestError
from corefw.llm import LLM, SamplingParams
from corefw.testing.server_process import Server, serving
from corefw.testing.tiny_models import TINY_LLAMA, write_tiny_llama
from tests.sample_plugins.install import install_sample

PROMPT = list(range(40, 80))
OTHER = list(range(90, 120))
WIDTH = TINY_LLAMA["hidden_size"]
GREEDY = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True}
STEERING = {"steering": {"vector": [(-1.0) ** i for i in range(WIDTH)], "scale": 3}}
HIDDEN = {"hidden_states": {"layers": [0, 1, 2]}}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("site")
    for sample in ("hidden", "recorder", "remote", "steering"):
        install_sample(sample, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VLLM_PLUGINS", raising=False)
        patch.setenv("COREFW_SAMPLE_RECORD", str(folder / "record"))
        patch.syspath_prepend(folder)
        yield folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_llama(tmp_path_factory.mktemp("tiny"), max_position_embeddings=4096))


def open_llm(model: str, plugins: str, **settings: Any) -> LLM:
    return LLM(model, dtype="float32", kv_cache_memory=2**26, plugins=plugins, **settings)


def story(site: Path, label: str, where: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (site / "record").read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if (line["label"], line["where"]) == (label, where)]


def reference_streams(model: str, ids: list[int]) -> list[torch.Tensor]:
    """The stream after each layer but the last, by another implementation."""
    loaded = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        return [hidden[0] for hidden in loaded(torch.tensor([ids]), output_hidden_states=True).hidden_states[1:-1]]


@pytest.fixture(scope="module")
def llm(site: Path, model: str) -> Iterator[LLM]:
    with open_llm(model, "hidden_states,steering") as opened:
        yield opened


def generate(llm: LLM, prompts: list[list[int]], extensions: list[dict[str, Any] | None]) -> list[Any]:
    return [result.outputs[0] for result in llm.generate(prompts, SamplingParams(**GREEDY), extensions=extensions)]


def test_hidden_states_of_each_token_are_those_of_another_implementation(llm: LLM, model: str) -> None:
    asked, silent = generate(llm, [PROMPT, OTHER], [HIDDEN, None])
    streams = reference_streams(model, [*PROMPT, *asked.token_ids[:-1]])
    for layer in (0, 1):
        told = torch.tensor(asked.extensions["hidden_states"][str(layer)])
        torch.testing.assert_close(told, streams[layer][len(PROMPT) - 1 :], rtol=1e-4, atol=1e-4)
    assert silent.extensions == {}


def test_steering_changes_those_who_ask_and_leaves_others_in_the_batch_bit_for_bit(llm: LLM) -> None:
    (alone,) = generate(llm, [PROMPT], [HIDDEN])
    plain, steered, again = generate(llm, [PROMPT] * 3, [HIDDEN, HIDDEN | STEERING, HIDDEN])
    assert plain.token_ids == again.token_ids == alone.token_ids
    assert plain.extensions == again.extensions == alone.extensions
    assert steered.extensions["hidden_states"]["2"][0] != plain.extensions["hidden_states"]["2"][0]
    assert steered.extensions["hidden_states"]["0"][0] == plain.extensions["hidden_states"]["0"][0]


def test_steered_prompts_are_not_taken_from_the_cache_of_others(llm: LLM) -> None:
    llm.reset_prefix_cache()
    (fresh,) = generate(llm, [PROMPT], [HIDDEN | STEERING])
    llm.reset_prefix_cache()
    generate(llm, [PROMPT], [None])
    results = llm.generate([PROMPT, PROMPT], SamplingParams(**GREEDY), extensions=[HIDDEN | STEERING, None])
    assert results[0].num_cached_tokens == 0
    assert results[1].num_cached_tokens > 0
    assert results[0].outputs[0].extensions == fresh.extensions


def test_data_are_checked_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(RequestError, match="did you mean hidden_states") as unknown:
        generate(llm, [PROMPT], [{"hidden_state": {}}])
    assert unknown.value.param == "extensions.hidden_state"
    with pytest.raises(RequestError, match="below 3") as wrong:
        generate(llm, [PROMPT], [{"hidden_states": {"layers": [3]}}])
    assert wrong.value.param == "extensions.hidden_states.layers"
    with pytest.raises(RequestError, match="must be an object"):
        generate(llm, [PROMPT], [{"hidden_states": [0]}])


def test_the_plan_says_which_points_are_tapped_and_which_graphs_that_would_break(llm: LLM) -> None:
    taps = [(chosen, why) for what, chosen, why in llm.plan.decisions if what == "tap points"]
    assert taps[0][0] == "layers.0.residual, layers.1.residual, layers.2.residual"
    assert "plugin corefw-sample-hidden/hidden_states" in taps[0][1]
    assert "they break full graphs" in taps[0][1]
    assert "they break full and piecewise graphs" in taps[1][1]


def test_a_point_that_the_model_lacks_stops_the_start_with_the_plugin_and_the_nearest(
    site: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from corefw_sample_steering.hooks import Steering  # installed by the fixture

    monkeypatch.setattr(Steering, "points", ("layers.7.residual",))
    with pytest.raises(ConfigError, match=r"corefw-sample-steering/steering: .*'layers.7.residual'; nearest: layers\."):
        open_llm(model, "steering")


def test_without_plugins_a_model_has_no_hooks_and_a_runner_no_observers(site: Path, model: str) -> None:
    for plugins, is_watched in (("", False), ("hidden_states", True)):
        with open_llm(model, plugins) as opened:
            worker = opened.engine.core._executor._worker()  # type: ignore[attr-defined]
            hooks = [module for module in worker._model.modules() if module._forward_hooks or module._forward_pre_hooks]
            assert bool(hooks) == is_watched
            assert (worker._runner.observers is not None) == is_watched


def test_the_recorder_tells_every_step_of_a_request_that_was_preempted_and_comes_back(site: Path, model: str) -> None:
    labels = ["first", "second", "third"]
    settings: dict[str, Any] = {"num_gpu_blocks_override": 11, "block_size": 16, "max_model_len": 128}
    with open_llm(model, "recorder", enable_prefix_caching=False, **settings) as opened:
        params = SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True)
        results = opened.generate(
            [PROMPT, PROMPT[::-1], OTHER], params, extensions=[{"recorder": {"label": label}} for label in labels]
        )
    num_preempted = 0
    for label, result in zip(labels, results, strict=True):
        core, worker = story(site, label, "core"), story(site, label, "worker")
        assert [line["line"] for line in core] == list(range(len(core))), "one context from beginning to end"
        events = [line["event"] for line in core]
        assert (events[0], events[-2:]) == ("added", ["finished", "closed"])
        num_preemptions = events.count("preempted")
        assert events.count("resumed") == num_preemptions
        assert [line["event"] for line in worker].count("came") == 1 + num_preemptions
        assert [line["event"] for line in worker].count("gone") == 1 + num_preemptions
        for where in (core, worker):
            told = [token for line in where if line["event"] == "sampled" for token in line["token_ids"]]
            assert told == result.outputs[0].token_ids
        spans = [(line["start"], line["stop"]) for line in core if line["event"] == "scheduled"]
        assert spans == [(line["start"], line["stop"]) for line in worker if line["event"] == "computed"]
        num_preempted += num_preemptions
    assert num_preempted > 0, "the scenario preempts"


@pytest.fixture(scope="module")
def server(site: Path, model: str) -> Iterator[Server]:
    env = {"PYTHONPATH": str(site), "COREFW_SAMPLE_RECORD": str(site / "record")}
    with serving(model, "--dtype", "float32", "--plugins", "+remote_routes", env=env) as running:
        yield running


def post(server: Server, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=60)


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    lines = (line for line in response.text.splitlines() if line.startswith("data: {"))
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/completions", {"prompt": PROMPT}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
    ],
)
def test_a_response_carries_hidden_states_streamed_or_not(server: Server, path: str, prompt: dict[str, Any]) -> None:
    body = {**prompt, **GREEDY, "extensions": {"hidden_states": {"layers": [2]}}}
    whole = post(server, path, body).json()["choices"][0]["extensions"]["hidden_states"]["2"]
    assert [len(state) for state in whole] == [WIDTH] * GREEDY["max_tokens"]
    streamed = events_of(post(server, path, {**body, "stream": True}))
    pieces = [
        choice["extensions"]["hidden_states"]["2"]
        for event in streamed
        for choice in event["choices"]
        if "extensions" in choice
    ]
    assert [state for piece in pieces for state in piece] == whole
    assert len(pieces) == GREEDY["max_tokens"]


def test_without_extensions_a_response_has_none(server: Server) -> None:
    assert "extensions" not in post(server, "/v1/completions", {"prompt": PROMPT, **GREEDY}).json()["choices"][0]


@pytest.mark.parametrize(
    ("extensions", "param"),
    [
        ({"nobody": {}}, "extensions.nobody"),
        ({"remote": {}}, "extensions.remote"),
        ({"steering": {"vector": [1.0]}}, "extensions.steering.vector"),
        ({"recorder": {"label": [[[[[[[[[1]]]]]]]]]}}, "extensions.recorder"),
    ],
)
def test_wrong_extensions_are_a_400_with_their_path(server: Server, extensions: dict[str, Any], param: str) -> None:
    response = post(server, "/v1/completions", {"prompt": PROMPT, **GREEDY, "extensions": extensions})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_a_client_that_hangs_up_is_told_to_observers_as_an_abort(server: Server, site: Path) -> None:
    body = {"prompt": PROMPT, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    body["extensions"] = {"recorder": {"label": "left"}}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        next(response.iter_lines())
    server.wait_idle()
    post(server, "/v1/completions", {"prompt": PROMPT, "max_tokens": 1})  # a step, so that the worker hears of the end
    events = [line["event"] for line in story(site, "left", "core")]
    assert [name for name, _ in groupby(events) if name not in ("scheduled", "sampled")] == [
        "added",
        "aborted",
        "closed",
    ]
    assert story(site, "left", "worker")[-1]["event"] == "gone"


def call(server: Server, name: str, *args: Any, **fields: Any) -> httpx.Response:
    return post(server, "/plugins/remote_routes/call", {"name": name, "args": list(args), **fields})


def test_functions_of_the_core_and_of_workers_are_called_by_name(server: Server) -> None:
    plain = [None, True, -7, 1.5, "ü", [1, [2]], {"a": {"b": 3}}]
    assert call(server, "remote.echo", *plain).json()["answer"] == plain
    (pid,) = call(server, "remote.pid").json()["answer"]
    assert pid in server.children()


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("remote.ecko", [], "did you mean remote.echo"),
        ("remote.pidd", [], "did you mean remote.pid"),
        ("remote.fail", ["out of luck"], "remote.fail failed: ValueError: out of luck"),
        ("remote.bad", [], "its result has a object, which isn't plain data"),
        ("stats", [], "takes plugin.method"),
    ],
)
def test_a_call_that_fails_says_why(server: Server, name: str, args: list[Any], message: str) -> None:
    response = call(server, name, *args)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def test_a_call_takes_no_longer_than_its_caller_waits(server: Server) -> None:
    response = call(server, "remote.sleep", 1.0, timeout_s=0.1)
    assert response.status_code == 504
    assert "within 0.1 s" in response.json()["error"]["message"]


def test_events_reach_an_endpoint(server: Server) -> None:
    choice = post(server, "/v1/completions", {"prompt": [99, 100], **GREEDY, "return_token_ids": True}).json()[
        "choices"
    ][0]
    for _ in range(100):
        event = httpx.get(f"{server.url}/plugins/remote_routes/next_event", timeout=20).json()
        if event["data"]["tokens"] == choice["token_ids"]:
            break
    assert (event["topic"], event["process"]) == ("remote.ended", "engine_core")


def test_offline_a_flood_of_events_is_cut_and_the_rest_arrives(site: Path, model: str) -> None:
    with open_llm(model, "remote") as opened:
        assert opened.call_plugin("remote.tell", 5000) == [4096]
        events = opened.take_events()
        assert [event.data for event in events] == list(range(4096 - 1024, 4096)), "an unread box keeps the newest"
        assert {(event.topic, event.process) for event in events} == {("remote.told", "worker")}
        opened.generate([PROMPT], SamplingParams(**GREEDY))
        assert [event.topic for event in opened.take_events()] == ["remote.ended"]
        with pytest.raises(RequestError, match="arguments has a set"):
            opened.call_plugin("remote.echo", {1})
