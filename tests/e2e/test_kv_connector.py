"""A KV connector that keeps blocks in files, and policies of the KV cache: real distributions in a real engine."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from corefw.errors import ConfigError, PluginError
from corefw.llm import LLM, SamplingParams
from corefw.messages.request import EngineCoreRequest
from corefw.testing.server_process import serving
from corefw.testing.tiny_models import write_tiny_llama
from tests.sample_plugins.install import install_sample

MODES = ("sync", "async")
_ASYNC_FIRST = ["async", pytest.param("sync", marks=pytest.mark.slow)]
PROMPTS = [[(7 * n + 13 * i) % 250 for i in range(40 + 9 * n)] for n in range(5)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, seed=0)

OpenLLM = Callable[..., LLM]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("site")
    for sample in ("file_connector", "kv_policies", "weights"):
        install_sample(sample, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VLLM_PLUGINS", raising=False)
        patch.syspath_prepend(folder)
        yield folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_llama(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def open_llm(site: Path, model: str) -> OpenLLM:
    def opened(*, plugins: str = "file", **settings: Any) -> LLM:
        return LLM(model, dtype="float32", **({"num_gpu_blocks_override": 100} | settings), plugins=plugins)

    return opened


@pytest.fixture(scope="module")
def expected(open_llm: OpenLLM) -> list[list[int]]:
    with open_llm(plugins="") as llm:
        return tokens(llm.generate(PROMPTS, GREEDY))


def connected(store: Path, mode: str, **options: Any) -> dict[str, str]:
    config = json.dumps({"path": str(store), "mode": mode, **options})
    return {"kv_connector": "file", "kv_connector_config": config}


def tokens(results: list[Any]) -> list[list[int]]:
    return [list(result.outputs[0].token_ids) for result in results]


def usage(llm: LLM) -> float:
    return float(llm.engine.core.call("stats")["kv_usage"])


def damage(store: Path, share: float) -> int:
    """Spoil some of the files, each in another way; returns how many."""
    chance = random.Random(0)
    files = sorted(store.rglob("*.kv"))
    chosen = chance.sample(files, max(1, int(share * len(files))))
    for index, path in enumerate(chosen):
        contents = path.read_bytes()
        path.write_bytes(contents[:-5] if index % 2 else contents[:100] + b"?" + contents[101:])
    return len(chosen)


@pytest.mark.parametrize("mode", MODES)
def test_blocks_outlive_the_engine_and_give_the_same_tokens(
    open_llm: OpenLLM, expected: list[list[int]], tmp_path: Path, mode: str
) -> None:
    for is_second in (False, True):
        with open_llm(**connected(tmp_path, mode)) as llm:
            results = llm.generate(PROMPTS, GREEDY)
            assert tokens(results) == expected
            cached = [result.num_cached_tokens for result in results]
            assert usage(llm) == 0
        kept = [min(len(prompt) // 16 * 16, len(prompt) - 1) for prompt in PROMPTS]
        assert cached == (kept if is_second else [0] * len(PROMPTS))


def test_blocks_of_other_weights_are_not_used(open_llm: OpenLLM, tmp_path: Path) -> None:
    cached = []
    for plugins, scale in (("file", None), ("file,weights", 2.0), ("file,weights", 3.0), ("file,weights", 2.0)):
        settings = {"plugin_config": {"weights": {"head_scale": scale}}} if scale else {}
        with open_llm(plugins=plugins, **connected(tmp_path, "sync"), **settings) as llm:
            cached.append([result.num_cached_tokens > 0 for result in llm.generate(PROMPTS[:1], GREEDY)])
    assert cached == [[False], [False], [False], [True]]


@pytest.mark.parametrize(
    ("mode", "share"),
    [
        ("async", 0.3),
        ("sync", 1.0),
        pytest.param("async", 1.0, marks=pytest.mark.slow),
        pytest.param("sync", 0.3, marks=pytest.mark.slow),
    ],
)
def test_damaged_files_are_computed_again_with_equal_tokens(
    open_llm: OpenLLM, expected: list[list[int]], tmp_path: Path, mode: str, share: float
) -> None:
    with open_llm(**connected(tmp_path, mode)) as llm:
        llm.generate(PROMPTS, GREEDY)
    assert damage(tmp_path, share) > 0
    with open_llm(**connected(tmp_path, mode)) as llm:
        assert tokens(llm.generate(PROMPTS, GREEDY)) == expected
        assert usage(llm) == 0
    with open_llm(**connected(tmp_path, mode)) as llm:  # what was computed on the way isn't poisoned
        results = llm.generate(PROMPTS, GREEDY)
        assert tokens(results) == expected
        assert all(result.num_cached_tokens for result in results)


@pytest.mark.parametrize("mode", _ASYNC_FIRST)
def test_a_failed_load_fails_its_requests_alone_by_policy(
    open_llm: OpenLLM, expected: list[list[int]], tmp_path: Path, mode: str
) -> None:
    with open_llm(**connected(tmp_path, mode)) as llm:
        llm.generate(PROMPTS[:1], GREEDY)
    damage(tmp_path, 1.0)
    with open_llm(**connected(tmp_path, mode), kv_load_failure_policy="fail") as llm:
        ends = drive(llm, PROMPTS)
        assert usage(llm) == 0
    assert ends[0] == "error"
    assert ends[1:] == expected[1:]


def drive(llm: LLM, prompts: list[list[int]], *, abort_after: dict[int, int] | None = None) -> list[Any]:
    """Run the prompts together; the tokens of each, or how it ended otherwise. ``abort_after``: steps, by prompt."""
    engine, found, ends = llm.engine, {}, {}
    for index, prompt in enumerate(prompts):
        found[str(index)] = []
        engine.add_request(EngineCoreRequest(request_id=str(index), prompt_ids=prompt, params=GREEDY))
    step = 0
    while engine.has_work():
        engine.abort([str(index) for index, at in (abort_after or {}).items() if at == step])
        for output in engine.step():
            found[output.request_id] += output.new_token_ids
            ends[output.request_id] = output.finish_reason
        step += 1
    good = ("length", "stop")
    return [found[name] if ends[name] in good else str(ends[name]) for name in found]


@pytest.mark.parametrize("mode", _ASYNC_FIRST)
def test_aborts_in_the_middle_of_loads_leave_all_blocks_free(
    open_llm: OpenLLM, expected: list[list[int]], tmp_path: Path, mode: str
) -> None:
    with open_llm(**connected(tmp_path, mode)) as llm:
        llm.generate(PROMPTS, GREEDY)
    with open_llm(**connected(tmp_path, mode, delay_s=0.02)) as llm:
        ends = drive(llm, PROMPTS, abort_after={0: 1, 2: 2, 3: 5})
        assert usage(llm) == 0
        assert [ends[index] for index in (1, 4)] == [expected[index] for index in (1, 4)]
        assert tokens(llm.generate(PROMPTS, GREEDY)) == expected


@pytest.mark.parametrize("mode", _ASYNC_FIRST)
def test_a_storm_of_preemptions_gives_the_same_tokens(
    open_llm: OpenLLM, expected: list[list[int]], tmp_path: Path, mode: str
) -> None:
    tight = {"num_gpu_blocks_override": 9, "full_sequence_must_fit": False, "max_num_batched_tokens": 32}
    for _ in range(2):
        with open_llm(**connected(tmp_path, mode), **tight) as llm:
            assert tokens(llm.generate(PROMPTS, GREEDY)) == expected
            assert usage(llm) == 0


def test_roles_say_what_is_written_and_what_is_read(open_llm: OpenLLM, tmp_path: Path) -> None:
    with open_llm(**connected(tmp_path, "sync"), kv_role="consumer") as llm:
        llm.generate(PROMPTS, GREEDY)
    assert not list(tmp_path.rglob("*.kv"))
    for _ in range(2):
        with open_llm(**connected(tmp_path, "sync"), kv_role="producer") as llm:
            assert not any(result.num_cached_tokens for result in llm.generate(PROMPTS[:1], GREEDY))
    assert list(tmp_path.rglob("*.kv"))


def test_emptying_the_prefix_cache_empties_the_files(open_llm: OpenLLM, tmp_path: Path) -> None:
    with open_llm(**connected(tmp_path, "sync")) as llm:
        llm.generate(PROMPTS, GREEDY)
        assert list(tmp_path.rglob("*.kv"))
        assert llm.reset_prefix_cache()
        assert not list(tmp_path.rglob("*.kv"))


def test_wrong_settings_stop_the_start(open_llm: OpenLLM, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="--kv-connector"):
        open_llm(kv_connector="fil")
    with pytest.raises(ConfigError, match="did you mean 'path'"):
        open_llm(kv_connector="file", kv_connector_config='{"pat": "x"}')
    with pytest.raises(ConfigError, match="mode"):
        open_llm(**connected(tmp_path, "later"))
    with pytest.raises(ConfigError, match="prefix caching"):
        open_llm(**connected(tmp_path, "sync"), enable_prefix_caching=False)


def test_a_server_finds_after_its_restart_what_it_had_computed(site: Path, model: str, tmp_path: Path) -> None:
    flags = ("--dtype", "float32", "--kv-connector", "file", "--kv-connector-config")
    settings = json.dumps({"path": str(tmp_path / "kv"), "mode": "async"})
    events = tmp_path / "events"
    env = {**os.environ, "PYTHONPATH": str(site), "COREFW_SAMPLE_KV_EVENTS": str(events)}
    body = {"prompt": PROMPTS[3], "temperature": 0, "max_tokens": 8, "ignore_eos": True}
    answers = []
    for _ in range(2):
        allow = ("--plugins", "file,kv_event_file")
        with serving(model, *flags, settings, *allow, "--num-gpu-blocks-override", "100", env=env) as server:
            answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            answers.append(answer.json())
            server.wait_idle()
    assert answers[0]["choices"] == answers[1]["choices"]
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert cached[0] == 0
    assert cached[1] >= len(PROMPTS[3]) // 16 * 16 - 1
    told = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
    stored = [event for event in told if event["event"] == "stored"]
    assert stored[0]["tokens"] == PROMPTS[3][:16]
    assert stored[1]["parent"] == stored[0]["block"]


def test_tenants_do_not_share_a_prefix(open_llm: OpenLLM) -> None:
    with open_llm(plugins="kv_tenants") as llm:
        cached = [run_with(llm, {"kv_tenants": {"tenant": name}}) for name in ("one", "one", "two", "two")]
    assert [bool(count) for count in cached] == [False, True, False, True]


def run_with(llm: LLM, extra: dict[str, Any], prompt: list[int] = PROMPTS[0]) -> int:
    """Run one prompt; how many of its tokens were cached."""
    engine = llm.engine
    engine.add_request(EngineCoreRequest(request_id=os.urandom(4).hex(), prompt_ids=prompt, params=GREEDY, extra=extra))
    cached = 0
    while engine.has_work():
        cached += sum(output.num_cached_tokens or 0 for output in engine.step())
    return cached


def test_a_lease_keeps_blocks_until_it_is_given_back(open_llm: OpenLLM) -> None:
    def wish(conversation: str) -> dict[str, Any]:
        return {"kv_leases": {"keep_s": 30, "conversation": conversation}}

    with open_llm(plugins="kv_leases", num_gpu_blocks_override=20) as llm:
        run_with(llm, wish("a"))
        held = usage(llm)
        assert held > 0
        for index in range(4):
            run_with(llm, {}, [200 + index] * 100)
        assert run_with(llm, wish("a")) == 32  # still there, though everything else was reused
        run_with(llm, wish("a"), [9])
        run_with(llm, {}, [8])
        assert 0 < usage(llm) < held


def test_an_eviction_policy_keeps_what_is_wanted_often(open_llm: OpenLLM) -> None:
    for plugins, survives in (("", False), ("kv_keep_popular", True)):
        with open_llm(plugins=plugins, num_gpu_blocks_override=20) as llm:
            for _ in range(3):
                run_with(llm, {})
            for index in range(4):
                run_with(llm, {}, [200 + index] * 100)
            assert bool(run_with(llm, {})) is survives


def test_a_plugin_decides_what_failed_loads_do(open_llm: OpenLLM, expected: list[list[int]], tmp_path: Path) -> None:
    prompts = [PROMPTS[1][:20], PROMPTS[4]]
    chosen = {"plugins": "file,kv_strict_loads", **connected(tmp_path, "sync")}  # other plugins have other blocks
    with open_llm(**chosen) as llm:
        short = tokens(llm.generate(prompts[:1], GREEDY))
        llm.generate(prompts[1:], GREEDY)
    damage(tmp_path, 1.0)
    with open_llm(**chosen) as llm:
        assert drive(llm, prompts) == [*short, "error"]
        assert usage(llm) == 0
