"""Who computes a model, and what the start says of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, MambaConfig, T5Config, T5ForConditionalGeneration

from corefw.errors import ConfigError, ModelFormatError
from corefw.interfaces.model import ModelRequest
from corefw.llm import LLM, SamplingParams
from corefw.testing.paged_loop import PagedLoop, cpu_build_context, model_info
from corefw.testing.tiny_models import write_tiny_llama
from corefw_models_transformers.inspection import inspect_model
from corefw_models_transformers.inspection_cache import load_answer, store_answer
from corefw_models_transformers.refusal import Refused
from plugins.models_transformers.tests.transformers_models import (
    built,
    prompts,
    reference_tokens,
    write_family,
    write_model,
)

NUM_TOKENS = 14
RESOLVE = """
import json, sys
from corefw.config.args import UserArgs
from corefw.engine.resolver import resolve_config
from corefw.plugin_system.manager import PluginManager
config = resolve_config(UserArgs.from_keywords(**json.loads(sys.argv[1])), PluginManager.discover(sys.argv[2]))
assert not {"torch", "transformers"} & set(sys.modules), "the front end imported torch or transformers"
why = [entry for entry in config.decisions if entry[0] == "model implementation"]
print(json.dumps([why[0], config.model_info.max_position, config.model_info.hf_config]))
"""
CODE = """
from transformers import LlamaConfig, LlamaForCausalLM
class OwnConfig(LlamaConfig):
    model_type = "own"
class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


def resolve(
    path: Path, *, plugins: str = "+corefw-models-transformers/*", **settings: Any
) -> tuple[list[str], int, Any]:
    """(what, chosen, why), the longest context and the configuration, as a fresh front end works them out."""
    given = json.dumps({"model": str(path), **settings})
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE, given, plugins], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise ConfigError(done.stderr.strip().splitlines()[-1])
    chosen, length, config = json.loads(done.stdout)
    return chosen, length, config


def refusal(path: Path, dtype: str = "float32", *, trusted: bool = False) -> str:
    architecture = json.loads((path / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    with pytest.raises(Refused) as caught:
        inspect_model(str(path), architecture, dtype, trusted=trusted)
    return str(caught.value)


def write_config(path: Path, family: str, architecture: str, **values: Any) -> Path:
    """A model that is refused before anybody asks for its weights."""
    AutoConfig.for_model(family, architectures=[architecture], **values).save_pretrained(path)
    return path


def write_own_code(path: Path, reference: str = "modeling_own.OwnForCausalLM") -> Path:
    write_family(path, "llama")
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    config |= {
        "model_type": "own",
        "architectures": ["OwnForCausalLM"],
        "auto_map": {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": reference},
    }
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (path / "modeling_own.py").write_text(CODE, encoding="utf-8")
    return path


def test_a_model_without_a_class_goes_to_transformers_and_the_front_end_stays_torch_free(tmp_path: Path) -> None:
    (what, chosen, why), length, config = resolve(write_family(tmp_path, "gpt2"))
    assert (what, chosen, length) == ("model implementation", "transformers", 256)
    assert "not native: model architecture 'GPT2LMHeadModel' is not supported" in why
    assert (config["hidden_size"], config["num_key_value_heads"], config["head_dim"]) == (24, 3, 8)


def test_a_native_class_wins_and_the_start_says_so(tmp_path: Path) -> None:
    (_, chosen, why), _, _ = resolve(write_tiny_llama(tmp_path))
    assert chosen == "native"
    assert "not transformers: not asked: native comes first" in why


def test_without_the_pack_the_start_says_what_to_install(tmp_path: Path) -> None:
    write_family(tmp_path, "gpt2")
    with pytest.raises(
        ConfigError, match=r"'GPT2LMHeadModel' is not supported.*pip install corefw-models-transformers"
    ):
        resolve(tmp_path, plugins="")
    with pytest.raises(ConfigError, match=r"no model implementation 'transformers'.*pip install corefw-models-"):
        resolve(tmp_path, plugins="", model_impl="transformers")


def test_native_by_name_never_falls_back(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'native' was asked for, but can't be used: .*'GPT2LMHeadModel'"):
        resolve(write_family(tmp_path, "gpt2"), model_impl="native")


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2_moe"])
def test_an_engine_says_what_transformers_says_alone_and_in_a_crowd(family: str, tmp_path: Path) -> None:
    """Chunks of 16 tokens, and too few blocks for all: some requests give way and are computed again."""
    write_family(tmp_path, family)
    asked = prompts()
    expected = reference_tokens(tmp_path, asked, NUM_TOKENS)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    settings = {"block_size": 8, "max_num_batched_tokens": 16, "max_num_seqs": 8, "max_model_len": 96}
    with LLM(str(tmp_path), dtype="float32", model_impl="transformers", num_gpu_blocks_override=17, **settings) as llm:
        assert ("model implementation", "transformers") in {entry[:2] for entry in llm.config.decisions}
        alone = [llm.generate({"prompt_token_ids": ids}, params)[0].outputs[0].token_ids for ids in asked]
        assert llm.engine.core.call("reset_prefix_cache")
        crowd = llm.generate([{"prompt_token_ids": ids} for ids in asked], params)
        assert llm.engine.core.call("stats")["num_preemptions"] > 0
    assert alone == expected
    assert [item.outputs[0].token_ids for item in crowd] == expected


def test_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    config = T5Config(vocab_size=259, d_model=24, d_ff=40, num_layers=2, num_heads=3, d_kv=8)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    assert "T5ForConditionalGeneration is an encoder with a decoder" in refusal(tmp_path)


def test_a_state_space_model_is_refused_by_the_front_end(tmp_path: Path) -> None:
    config = MambaConfig(vocab_size=259, hidden_size=24, num_hidden_layers=2, state_size=4)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="not transformers: it has layers of the kind linear_attention"):
        resolve(tmp_path)


@pytest.mark.parametrize(
    ("family", "architecture", "reason"),
    [
        ("bloom", "BloomForCausalLM", "doesn't go through transformers' attention interface"),
        ("mpt", "MptForCausalLM", "doesn't go through transformers' attention interface"),
        ("falcon", "FalconForCausalLM", "doesn't go through transformers' attention interface"),
        ("gpt_oss", "GptOssForCausalLM", "has attention sinks"),
        ("deepseek_v3", "DeepseekV3ForCausalLM", "keys have 192 elements a head and its values 128"),
        ("jamba", "JambaForCausalLM", "layers of the kind linear_attention"),
        ("bert", "BertLMHeadModel", "neither causal nor a sliding window"),
        ("gpt2", "GPT2ForSequenceClassification", "no causal language model GPT2ForSequenceClassification"),
        ("diffllama", "DiffLlamaForCausalLM", "attention of model.layers.0.self_attn more than once"),
    ],
)
def test_what_paged_attention_cannot_do_is_refused_in_a_sentence(
    family: str, architecture: str, reason: str, tmp_path: Path
) -> None:
    said = refusal(write_config(tmp_path, family, architecture), "bfloat16")
    assert reason in said
    assert "\n" not in said


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_positions_that_depend_on_the_batch_are_refused(kind: str, tmp_path: Path) -> None:
    factors = {"factor": 2.0} if kind == "dynamic" else {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    values = {"hidden_size": 24, "num_attention_heads": 3, "original_max_position_embeddings": 64, "factor": 2.0}
    rope = {"rope_type": kind, "rope_theta": 10000.0, **factors}
    path = write_config(tmp_path, "llama", "LlamaForCausalLM", rope_parameters=rope, **values)
    assert f"({kind}) depends on the longest sequence of a batch" in refusal(path)


def test_what_has_no_fixed_order_is_refused_in_float32_alone(tmp_path: Path) -> None:
    path = write_config(tmp_path, "stablelm", "StableLmForCausalLM", hidden_act="mish", max_position_embeddings=256)
    assert "its mish has no fixed order here; choose --dtype bfloat16" in refusal(path)
    assert inspect_model(str(path), "StableLmForCausalLM", "bfloat16", trusted=False).layers


def test_code_of_a_model_runs_only_when_it_is_trusted(tmp_path: Path) -> None:
    write_own_code(tmp_path)
    with pytest.raises(ConfigError, match=r"modeling_own\.OwnForCausalLM.*only with --trust-remote-code"):
        resolve(tmp_path)
    (_, chosen, _), _, _ = resolve(tmp_path, trust_remote_code=True)
    assert chosen == "transformers"


def test_trusted_code_computes_what_it_says(tmp_path: Path) -> None:
    own, llama = write_own_code(tmp_path / "own"), write_family(tmp_path / "llama", "llama")
    build = cpu_build_context()
    ids = prompts((30,))[0]
    results = [PagedLoop(built(path, build, trusted=True), build).step({0: ids})[0] for path in (own, llama)]
    assert torch.equal(*results)


def test_code_in_another_repository_is_never_fetched(tmp_path: Path) -> None:
    write_own_code(tmp_path, "somebody/else--modeling_own.OwnForCausalLM")
    assert "code lies elsewhere" in refusal(tmp_path, trusted=True)


def test_a_checkpoint_that_misses_a_tensor_is_refused_by_its_name(tmp_path: Path) -> None:
    write_family(tmp_path, "gpt_neox")
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["gpt_neox.layers.1.attention.dense.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelFormatError, match=r"misses 1 tensor\(s\): gpt_neox\.layers\.1\.attention\.dense\.weight"):
        built(tmp_path, cpu_build_context())


def test_a_head_that_has_weights_of_its_own_keeps_them(tmp_path: Path) -> None:
    write_model(tmp_path, AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", n_embd=24, n_layer=1, n_head=3,
        vocab_size=259, n_positions=64, tie_word_embeddings=False)))  # fmt: skip
    build = cpu_build_context()
    model = built(tmp_path, build)
    assert not torch.equal(model.model.head.lm_head.weight, model.model.base.wte.weight)
    asked = prompts((9,))
    assert [PagedLoop(model, build).greedy(0, asked[0], 5)] == reference_tokens(tmp_path, asked, 5)


def test_modules_in_the_current_directory_are_never_imported(tmp_path: Path) -> None:
    write_family(tmp_path, "gpt2")
    modules = ("argparse", "torch", "transformers")
    for module in modules:
        trace = f"open({str(tmp_path / module)!r}, 'w').close()\n"
        (tmp_path / f"{module}.py").write_text(trace, encoding="utf-8")
    asked = [sys.executable, "-P", "-c", RESOLVE, json.dumps({"model": "."}), "+corefw-models-transformers/*"]
    empty = {**os.environ, "COREFW_CACHE_DIR": str(tmp_path / "cache")}  # an answer that is kept imports nothing
    done = subprocess.run(asked, cwd=tmp_path, env=empty, capture_output=True, text=True, timeout=300, check=False)
    assert [module for module in modules if (tmp_path / module).exists()] == []
    assert done.returncode == 0, done.stderr


def request_of(path: Path, **settings: Any) -> ModelRequest:
    stated = json.loads((path / "config.json").read_text(encoding="utf-8"))
    info = model_info({"max_position_embeddings": 256, "vocab_size": 259, **stated}, str(path))
    return ModelRequest(info=info, dtype="float32", cache_dir=str(path / "kept"), **settings)


def test_an_answer_is_kept_until_the_configuration_changes(tmp_path: Path) -> None:
    request = request_of(write_family(tmp_path, "gpt2"))
    assert load_answer(request) is None
    store_answer(request, {"sizes": {"vocab_size": 259}})
    assert load_answer(request) == {"sizes": {"vocab_size": 259}}
    config = tmp_path / "config.json"
    config.write_text(config.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert load_answer(request) is None


def test_neither_refusals_nor_answers_of_a_models_code_are_kept(tmp_path: Path) -> None:
    path = write_family(tmp_path, "gpt2")
    store_answer(request_of(path), {"refused": "today"})
    store_answer(request_of(path, trust_remote_code=True), {"sizes": {}})
    assert not (path / "kept").exists()


def test_a_damaged_answer_is_asked_for_again(tmp_path: Path) -> None:
    request = request_of(write_family(tmp_path, "gpt2"))
    store_answer(request, {"sizes": {}})
    for text in ("{", "[]", '{"sizes": 3}'):
        next((tmp_path / "kept").rglob("*.json")).write_text(text, encoding="utf-8")
        assert load_answer(request) is None


def test_what_trusted_code_prints_is_no_answer(tmp_path: Path) -> None:
    write_own_code(tmp_path)
    code = tmp_path / "modeling_own.py"
    noise = "import atexit\nprint('{}')\natexit.register(print, 'bye')\n"
    code.write_text(noise + code.read_text(encoding="utf-8"), encoding="utf-8")
    assert resolve(tmp_path, trust_remote_code=True)[0][1] == "transformers"


def test_the_inspection_ends_with_the_process_that_asked(tmp_path: Path) -> None:
    write_own_code(tmp_path)
    started = tmp_path / "started"
    hang = f"open({str(started)!r}, 'w').close()\nimport time\ntime.sleep(600)\n"
    (tmp_path / "modeling_own.py").write_text(hang + CODE, encoding="utf-8")
    command = [sys.executable, "-P", "-m", "corefw_models_transformers.inspection_process", "--trust-remote-code"]
    with subprocess.Popen([*command, str(tmp_path), "OwnForCausalLM", "float32"], stdin=subprocess.PIPE) as asked:
        try:
            while not started.exists() and asked.poll() is None:
                time.sleep(0.05)
            asked.stdin.close()  # type: ignore[union-attr]
            assert asked.wait(timeout=30) == 70
        finally:
            asked.kill()


def test_a_configuration_that_transformers_cannot_read_is_refused_in_a_sentence(tmp_path: Path) -> None:
    write_family(tmp_path, "gpt2")
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | {"n_embd": "wide"}), encoding="utf-8")
    said = refusal(tmp_path)
    assert "transformers can't read its configuration" in said
    assert "\n" not in said
