"""Offline use as a program meets it, on a tiny model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from corefw import LLM, SamplingParams
from corefw.errors import ConfigError, ContextLengthError, EngineDeadError, RequestError
from corefw.testing.tiny_models import write_tiny_llama

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(tiny: Path) -> Iterator[LLM]:
    with LLM(str(tiny), dtype="float32", kv_cache_memory=8 * 2**20) as made:
        yield made


def idle(llm: LLM) -> bool:
    stats = llm.engine.core.call("stats")
    return (stats["num_running"], stats["num_waiting"], stats["kv_usage"]) == (0, 0, 0.0)


def test_results_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    lengths = [1, 9, 4]
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in lengths]
    results = llm.generate(["first", "second", "third"], params)
    assert [result.prompt for result in results] == ["first", "second", "third"]
    assert [len(result.outputs[0].token_ids) for result in results] == lengths
    assert all(result.finished and result.outputs[0].finish_reason == "length" for result in results)


def test_every_form_of_a_prompt_means_the_same(llm: LLM) -> None:
    (by_text,) = llm.generate("same words", GREEDY)
    ids = by_text.prompt_token_ids
    forms = [llm.generate(ids, GREEDY), llm.generate([ids], GREEDY), llm.generate([{"prompt_token_ids": ids}], GREEDY)]
    forms.append(llm.generate({"prompt": "same words", "cache_salt": "own"}, GREEDY))
    assert [form[0].outputs[0].token_ids for form in forms] == [by_text.outputs[0].token_ids] * 4
    assert forms[3][0].prompt == "same words"


def test_together_and_alone_give_the_same_tokens(llm: LLM) -> None:
    prompts = [f"prompt number {i}" * (i + 1) for i in range(9)]
    together = [result.outputs[0].token_ids for result in llm.generate(prompts, GREEDY)]
    assert together == [llm.generate(prompt, GREEDY)[0].outputs[0].token_ids for prompt in prompts]


def test_n_outputs_come_by_index_and_the_first_equals_n_of_one(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=5, max_tokens=5, ignore_eos=True)
    (many,) = llm.generate("several", params)
    (one,) = llm.generate("several", SamplingParams(seed=5, max_tokens=5, ignore_eos=True))
    assert [output.index for output in many.outputs] == [0, 1, 2]
    assert many.outputs[0].token_ids == one.outputs[0].token_ids
    assert len({tuple(output.token_ids) for output in many.outputs}) == 3


def test_logprobs_come_for_every_token(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=2, ignore_eos=True)
    output = llm.generate("likely", params)[0].outputs[0]
    assert output.logprobs is not None
    assert [entry.token_id for entry in output.logprobs] == output.token_ids
    assert all(len(entry.top) == 2 and entry.rank == 1 for entry in output.logprobs)


def test_a_stop_string_ends_the_output_and_frees_its_blocks(llm: LLM) -> None:
    whole = llm.generate("stop here", GREEDY)[0].outputs[0].text
    stop = whole[2]
    output = llm.generate("stop here", SamplingParams(temperature=0.0, max_tokens=6, stop=(stop,)))[0].outputs[0]
    assert output.text == whole[: whole.index(stop)]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)
    assert idle(llm)


def test_a_repeated_prompt_is_taken_from_the_cache(llm: LLM) -> None:
    prompt = "shared beginning " * 8
    first, second = (llm.generate(prompt, GREEDY)[0] for _ in range(2))
    assert first.num_cached_tokens < second.num_cached_tokens < len(second.prompt_token_ids)


def test_a_chat_goes_through_the_template(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "hi"}]
    one = llm.chat(conversation, GREEDY)
    two = llm.chat([conversation, [{"role": "user", "content": "bye"}]], GREEDY)
    assert len(one) == 1
    assert [result.outputs[0].token_ids for result in two][:1] == [one[0].outputs[0].token_ids]
    without = llm.chat(conversation, GREEDY, add_generation_prompt=False)
    assert len(without[0].prompt_token_ids) < len(one[0].prompt_token_ids)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("", "prompt 1: the prompt is empty"),
        ([5, 999], "prompt 1: the token id at position 1"),
        ({"text": "x"}, "text"),
    ],
)
def test_a_bad_prompt_is_named_and_nothing_runs(llm: LLM, bad: object, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        llm.generate(["good", bad], GREEDY)  # type: ignore[list-item]
    assert not llm.engine.has_work()


def test_a_prompt_that_is_too_long_is_named(llm: LLM) -> None:
    with pytest.raises(ContextLengthError, match="prompt 2: the prompt has 300 tokens"):
        llm.generate([[7], [8], [9] * 300], GREEDY)
    assert not llm.engine.has_work()


def test_a_malformed_conversation_is_named(llm: LLM) -> None:
    with pytest.raises(RequestError, match="prompt 1: a message needs a role"):
        llm.chat([[{"role": "user", "content": "ok"}], [{"content": "who?"}]], GREEDY)


def test_the_number_of_parameters_must_fit(llm: LLM) -> None:
    with pytest.raises(RequestError, match="got 1 for 2 prompts"):
        llm.generate(["a", "b"], [GREEDY])
    with pytest.raises(RequestError, match="got 0 for 2 prompts"):
        llm.generate(["a", "b"], [])


def test_no_prompts_are_no_results(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []


def test_ctrl_c_leaves_nothing_running(llm: LLM) -> None:
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["long"] * 200, SamplingParams(max_tokens=200, ignore_eos=True))
    assert idle(llm)
    assert len(llm.generate("afterwards", GREEDY)[0].outputs[0].token_ids) == 6


def test_the_progress_bar_is_shown_when_asked_for_alone(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], GREEDY)
    assert capfd.readouterr().err == ""
    llm.generate(["a", "b"], GREEDY, use_tqdm=True)
    assert "2/2" in capfd.readouterr().err


def test_the_models_own_defaults_are_taken_where_nothing_is_said(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{"temperature": 0.25, "top_k": 7}')
    with LLM(str(tiny), kv_cache_memory=2**20, generation_config=str(file)) as made:
        assert made.default_params(top_k=3) == SamplingParams(temperature=0.25, top_k=3)


def test_a_closed_model_says_so(tiny: Path) -> None:
    made = LLM(str(tiny), kv_cache_memory=2**20)
    made.close()
    made.close()
    with pytest.raises(EngineDeadError, match="closed"):
        made.generate("x")


def test_settings_that_mean_nothing_offline_are_refused(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="port: only the HTTP server"):
        LLM(str(tiny), port=1)
    with pytest.raises(ConfigError, match="max_model_len"):
        LLM(str(tiny), max_modle_len=1)


def test_importing_corefw_imports_nothing_else() -> None:
    code = "import corefw, sys; print(sorted(n for n in sys.modules if n.split('.')[0] in ('torch', 'msgspec')))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
