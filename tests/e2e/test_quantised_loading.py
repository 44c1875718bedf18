"""Plain weights that are rounded while they are loaded, in the real engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from corefw.models.layers.block_quantizers import quantised_4_bits, quantised_8_bits
from corefw.testing.tiny_models import write_tiny_llama
from tests.e2e.driver import open_engine, request, run

PARAMS = SamplingParams(temperature=0.0, seed=0, max_tokens=12, ignore_eos=True, logprobs=1)
SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 8, "num_attention_heads": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("plain") / "model", **SIZES)


def requests() -> list[EngineCoreRequest]:
    return [
        request(str(index), [3 + (7 * index + 5 * at) % 200 for at in range(9 + index)], PARAMS) for index in (0, 1)
    ]


def results(model: Path, **settings: Any) -> list[tuple[list[int], object]]:
    common: dict[str, Any] = {"max_model_len": 64, "kv_cache_memory": 2**20, "weights_cache": "off", **settings}
    with open_engine(str(model), **common) as engine:
        found = run(engine, requests())
    return [(found[item.request_id].token_ids, found[item.request_id].logprobs) for item in requests()]


def test_in_float32_it_is_the_model_with_the_rounded_values_bit_for_bit(model: Path, tmp_path: Path) -> None:
    settings = {"targets": {"*.mlp.*": "int4_per_group", "*": "int8_per_channel"}}
    rounded = write_tiny_llama(tmp_path / "rounded", **SIZES)
    tensors = {
        name: (quantised_4_bits if "mlp" in name else quantised_8_bits)(value).dequantised()
        if "_proj" in name
        else value
        for name, value in load_file(model / "model.safetensors").items()
    }
    save_file(tensors, rounded / "model.safetensors", metadata={"format": "pt"})
    found = results(model, dtype="float32", quantization_config=settings)
    assert found == results(rounded, dtype="float32")


def test_every_layer_may_have_its_own(model: Path) -> None:
    settings = {
        "targets": {"lm_head": "int8_dynamic", "layers.0.*": "int4_per_group", "*": "int8_dynamic"},
        "ignore": ["*.2.mlp.down_proj"],
    }
    found = results(model, dtype="bfloat16", quantization_config=settings)
    assert all(len(tokens) == PARAMS.max_tokens for tokens, _ in found)
    assert found == results(model, dtype="bfloat16", quantization_config=settings)
