"""Offline use as a program meets it, on a tiny model."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from corefw import LLM, SamplingParams
from corefw.errors import ConfigError, ContextLengthError, EngineDeadError, RequestError
from corefw.models.llama import LlamaForCausalLM
from corefw.runtime.kv_pages import KVPages
from corefw.testing.tiny_models import write_tiny_llama
from tests.sample_plugins.install import write_metadata

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


def test_after_a_reset_nothing_comes_from_the_cache(llm: LLM) -> None:
    prompt = "what is forgotten has to be computed again, all of it"
    llm.generate(prompt, GREEDY)
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens > 0
    assert llm.reset_prefix_cache()
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens == 0


def test_a_chat_goes_through_the_template(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "hi"}]
    one = llm.chat(conversation, GREEDY)
    two = llm.chat([conversation, [{"role": "user", "content": "bye"}]], GREEDY)
    assert len(one) == 1
    assert [result.outputs[0].token_ids for result in two][:1] == [one[0].outputs[0].token_ids]
    without = llm.chat(conversation, GREEDY, add_generation_prompt=False)
    assert len(without[0].prompt_token_ids) < len(one[0].prompt_token_ids)


def test_the_last_message_can_be_continued(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "good"}]
    ended = llm.chat(conversation, GREEDY, add_generation_prompt=False)[0].prompt_token_ids
    open_ids = llm.chat(conversation, GREEDY, continue_final_message=True)[0].prompt_token_ids
    assert 0 < len(open_ids) < len(ended)
    assert ended[: len(open_ids)] == open_ids
    with pytest.raises(RequestError, match="can't both be true; leave add_generation_prompt out"):
        llm.chat(conversation, GREEDY, continue_final_message=True, add_generation_prompt=True)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("", "prompt 1: the prompt is empty"),
        ([5, 999], "prompt 1: the token id at position 1"),
        ({"text": "x"}, "text"),
        ({"prompt": 3}, "prompt has to be text, or a list of token ids, not int"),
        ({"prompt": {"a": 1}}, "has one of prompt"),
        ({"prompt_token_ids": "text"}, "prompt_token_ids has to be a list of token ids, not str"),
        ({"prompt_token_ids": None}, "prompt_token_ids has to be a list of token ids, not NoneType"),
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


def test_a_closed_model_gives_its_memory_back_at_once(tiny: Path) -> None:
    gc.collect()
    gc.disable()
    try:
        before = [id(one) for one in _models_and_caches()]
        made = LLM(str(tiny), dtype="float32", kv_cache_memory=8 * 2**20)
        made.generate("words", GREEDY)
        held = [weakref.ref(one) for one in _models_and_caches() if id(one) not in before]
        assert len(held) == 2
        made.close()
        assert [one() for one in held] == [None, None]
    finally:
        gc.enable()


def _models_and_caches() -> list[object]:
    gc.unfreeze()  # what is frozen isn't listed
    return [one for one in gc.get_objects() if type(one) in (LlamaForCausalLM, KVPages)]


def test_a_start_neither_keeps_the_programs_garbage_nor_leaves_anything_frozen_when_it_fails(tiny: Path) -> None:
    class Knot: ...

    knot = Knot()
    knot.self = knot  # type: ignore[attr-defined]
    garbage = weakref.ref(knot)
    del knot
    with LLM(str(tiny), dtype="float32", kv_cache_memory=8 * 2**20):
        assert garbage() is None
    num_frozen = gc.get_freeze_count()
    with pytest.raises(ConfigError, match="at least 2 blocks"):
        LLM(str(tiny), dtype="float32", kv_cache_memory=1)
    assert gc.get_freeze_count() == num_frozen


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


@pytest.fixture(scope="module")
def embedding_llm(tiny: Path) -> Iterator[LLM]:
    with LLM(str(tiny), dtype="float32", kv_cache_memory=8 * 2**20, enable_prompt_embeds=True) as made:
        yield made


@pytest.fixture(scope="module")
def table(tiny: Path) -> np.ndarray:
    return load_file(tiny / "model.safetensors")["model.embed_tokens.weight"]


def test_embeddings_of_a_text_mean_that_text_whole_or_in_its_places(embedding_llm: LLM, table: np.ndarray) -> None:
    (expected,) = embedding_llm.generate("what is written here", GREEDY)
    ids = expected.prompt_token_ids
    rows = table[ids]
    results = embedding_llm.generate(
        [
            {"prompt_embeds": rows},
            {"prompt_embeds": rows, "cache_salt": "own"},
            {
                "prompt_token_ids": [*ids[:3], 0, 0, *ids[5:-1], 0],
                "prompt_embeds": {len(ids) - 1: rows[-1:], 3: rows[3:5]},
            },
            "what is written here",
        ],
        GREEDY,
    )
    assert [result.outputs[0].token_ids for result in results] == [expected.outputs[0].token_ids] * 4
    assert results[0].prompt is None
    assert len(results[0].prompt_token_ids) == len(ids)


def test_each_of_n_outputs_has_the_embeddings(embedding_llm: LLM, table: np.ndarray) -> None:
    params = SamplingParams(n=3, temperature=1.0, seed=4, max_tokens=6, ignore_eos=True)
    by_ids, by_rows = embedding_llm.generate([[5, 6, 7], {"prompt_embeds": table[[5, 6, 7]]}], params)
    assert [one.token_ids for one in by_rows.outputs] == [one.token_ids for one in by_ids.outputs]


@pytest.mark.parametrize("prompt", [
    {"prompt_embeds": [[1.0]]}, {"prompt_embeds": None}, {"prompt_embeds": np.ones((2, 47), np.float32)},
    {"prompt": "a", "prompt_embeds": np.ones((1, 48), np.float32)},
    {"prompt_token_ids": [1, 2], "prompt_embeds": np.ones((1, 48), np.float32)},
    {"prompt_token_ids": [1, 2], "prompt_embeds": {2: np.ones((1, 48), np.float32)}},
    {"prompt_embeds": {0: np.ones((1, 48), np.float32)}},
])  # fmt: skip
def test_other_embeddings_are_refused_with_the_prompt(embedding_llm: LLM, prompt: object) -> None:
    with pytest.raises(RequestError, match=r"^prompt 1: .*prompt_embeds"):
        embedding_llm.generate(["good", prompt], GREEDY)
    assert idle(embedding_llm)


def test_embeddings_have_to_be_switched_on(llm: LLM) -> None:
    with pytest.raises(RequestError, match="--enable-prompt-embeds"):
        llm.generate({"prompt_embeds": np.ones((1, 48), np.float32)}, GREEDY)


_OTHER_MODEL = """
from corefw.models.llama import LlamaForCausalLM

class TwoArgumentsForCausalLM(LlamaForCausalLM):
    accepts_embeds = False

    def forward(self, input_ids_T, positions_T):
        return super().forward(input_ids_T, positions_T)
"""


def test_a_plugin_s_model_that_takes_no_embeddings_runs_and_refuses_the_flag(
    tmp_path: Path, tiny: Path, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "two_arguments.py").write_text(_OTHER_MODEL, encoding="utf-8")
    name = "TwoArgumentsForCausalLM"
    write_metadata(tmp_path, "two-arguments", "1.0", {"corefw.model_plugins": {name: f"two_arguments:{name}"}})
    model = write_tiny_llama(tmp_path / "model", architectures=[name])
    settings = {"dtype": "float32", "kv_cache_memory": 8 * 2**20}
    with LLM(str(model), **settings) as made:
        assert (
            made.generate("text", GREEDY)[0].outputs[0].token_ids
            == llm.generate("text", GREEDY)[0].outputs[0].token_ids
        )
    with pytest.raises(ConfigError, match=f"--enable-prompt-embeds: .*{name}"):
        LLM(str(model), enable_prompt_embeds=True, **settings)
