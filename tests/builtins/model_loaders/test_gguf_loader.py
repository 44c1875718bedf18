from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from corefw.builtins.model_loaders.gguf import GGUFLoader
from corefw.config.model_info import ModelFiles
from corefw.models.layers.blocks import BlockTensor
from corefw.models.loading import gguf_config
from corefw.models.loading.gguf_architectures import ARCHITECTURES, GGUFArchitecture, TensorRule
from tests.models.loading.tiny_gguf import exporter_rows, llama_arrays, write_llama, write_split

Kind = gguf.GGMLQuantizationType


def files_of(*paths: Path) -> ModelFiles:
    return ModelFiles(
        reference=str(paths[0]), source="gguf_file", root=str(paths[0].parent), weights=tuple(map(str, paths))
    )


def load(path: Path, dtype: torch.dtype, loader: GGUFLoader | None = None) -> dict[str, torch.Tensor]:
    loader = loader or GGUFLoader()
    return dict(loader.weights(loader.read_info(files_of(path)), dtype))


@pytest.mark.parametrize("tied", [False, True])
def test_an_exported_llama_comes_back_identical(tmp_path: Path, tied: bool) -> None:
    arrays = llama_arrays(tied=tied, biases=True)
    weights = load(write_llama(tmp_path / "model.gguf", arrays), torch.float32)
    assert weights.keys() == arrays.keys()
    for name, array in arrays.items():
        assert torch.equal(weights[name], torch.from_numpy(array)), name


def test_matrices_of_wanted_block_types_come_in_blocks_with_rows_in_order(tmp_path: Path) -> None:
    arrays = llama_arrays()
    kinds = {name: Kind.Q8_0 if "down" in name else Kind.Q4_1 for name in arrays if "norm" not in name}
    path = write_llama(tmp_path / "model.gguf", arrays, types=kinds)
    loader = GGUFLoader()
    info = loader.read_info(files_of(path))
    assert (info.quantization, info.block_types) == ("gguf", ("Q4_1", "Q8_0"))
    found = dict(loader.weights_in_blocks(info, torch.float32, {"Q4_1"}))
    for name, wanted in load(path, torch.float32).items():
        held = found[name]
        assert isinstance(held, BlockTensor) is (kinds.get(name) == Kind.Q4_1), name
        assert torch.equal(held.dequantised() if isinstance(held, BlockTensor) else held, wanted), name


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16])
def test_plain_floats_keep_their_dtype(tmp_path: Path, kind: Kind) -> None:
    arrays = llama_arrays()
    types = {name: kind for name in arrays if "norm" not in name}
    weights = load(write_llama(tmp_path / "model.gguf", arrays, types=types), torch.float32)
    dtype = torch.float16 if kind == Kind.F16 else torch.bfloat16
    for name, array in arrays.items():
        expected = torch.from_numpy(array)
        assert torch.equal(weights[name], expected if "norm" in name else expected.to(dtype)), name


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_each_tensor_is_decoded_by_its_own_type(tmp_path: Path, kind: Kind, dtype: torch.dtype) -> None:
    arrays = llama_arrays()
    types = {"model.embed_tokens.weight": kind, "model.layers.1.self_attn.k_proj.weight": Kind.Q8_0}
    weights = load(write_llama(tmp_path / "model.gguf", arrays, types=types), dtype)
    for name, array in arrays.items():
        expected = array
        if name in types:
            # Rows are quantised one by one, so quantising first and moving rows later is the same.
            expected = gguf.quants.dequantize(gguf.quants.quantize(array, types[name]), types[name])
            assert weights[name].dtype == dtype
        assert torch.equal(weights[name], torch.from_numpy(expected).to(weights[name].dtype)), name


class FrugalLoader(GGUFLoader):
    scratch_elements = 96


def test_a_tensor_larger_than_the_scratch_memory_is_decoded_whole(tmp_path: Path) -> None:
    arrays = llama_arrays()
    path = write_llama(tmp_path / "model.gguf", arrays, types={"lm_head.weight": Kind.Q8_0})
    expected = gguf.quants.dequantize(gguf.quants.quantize(arrays["lm_head.weight"], Kind.Q8_0), Kind.Q8_0)
    decoded = load(path, torch.bfloat16, FrugalLoader())["lm_head.weight"]
    assert torch.equal(decoded, torch.from_numpy(expected).to(torch.bfloat16))


def test_an_offset_that_the_exporter_added_is_taken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llama = ARCHITECTURES["llama"]
    rule = TensorRule(name="model.norm.weight", offset=1.0)
    shifted = GGUFArchitecture(
        name="shifted",
        hf_class="ShiftedForCausalLM",
        model_type="shifted",
        tensors={**llama.tensors, "output_norm.weight": rule},
    )
    monkeypatch.setitem(gguf_config.ARCHITECTURES, "shifted", shifted)
    arrays = llama_arrays()
    metadata = {
        key.replace("llama.", "shifted."): value
        for key, value in {
            "llama.block_count": 2,
            "llama.context_length": 256,
            "llama.embedding_length": 64,
            "llama.feed_forward_length": 96,
            "llama.attention.head_count": 4,
            "llama.attention.head_count_kv": 2,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
        }.items()
    }
    path = write_llama(tmp_path / "model.gguf", arrays, architecture="shifted", metadata=metadata)
    for dtype in (torch.float32, torch.bfloat16):
        weights = load(path, dtype)
        expected = torch.from_numpy(arrays["model.norm.weight"] - np.float32(1))
        assert torch.equal(weights["model.norm.weight"], expected.to(dtype))
        norm = "model.layers.0.input_layernorm.weight"
        assert torch.equal(weights[norm], torch.from_numpy(arrays[norm]))


def test_gguf_files_are_supported_by_ending_or_magic_and_else_the_reason_is_said(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "model.gguf", llama_arrays())
    nameless = path.rename(tmp_path / "blob")
    other = tmp_path / "model.safetensors"
    other.write_bytes(b"x")
    loader = GGUFLoader()
    assert loader.supports(files_of(nameless)) is None
    assert loader.supports(files_of(tmp_path / "missing.gguf")) is None
    assert loader.supports(files_of(nameless, tmp_path / "second.gguf")) is None
    assert loader.supports(files_of(nameless, other)) == "model.safetensors isn't a GGUF file"


def test_the_parts_of_a_split_model_are_loaded_as_one(tmp_path: Path) -> None:
    arrays = llama_arrays(biases=True)
    parts = write_split(tmp_path / "m", arrays, counts=(0, 9, len(arrays) - 9))
    loader = GGUFLoader()
    info = loader.read_info(files_of(*parts))
    assert info.vocab_size == 40
    weights = dict(loader.weights(info, torch.float32))
    assert weights.keys() == arrays.keys()
    for name, array in arrays.items():
        assert torch.equal(weights[name], torch.from_numpy(array)), name


def test_queries_and_keys_are_really_permuted_in_the_file() -> None:
    array = llama_arrays()["model.layers.0.self_attn.q_proj.weight"]
    assert not np.array_equal(exporter_rows("q_proj", array), array)


def test_reading_a_header_does_not_import_torch(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "model.gguf", llama_arrays())
    program = (
        "import sys\n"
        "from corefw.builtins.model_loaders.gguf import GGUFLoader\n"
        "from corefw.builtins.model_loaders.safetensors import SafetensorsLoader\n"
        "from corefw.builtins.model_sources import gguf_file, hub, local, pypi\n"
        "from corefw.interfaces.model_source import SourceOptions\n"
        "files = gguf_file.GGUFFile().resolve(sys.argv[1], SourceOptions(cache_dir='unused'))\n"
        "assert GGUFLoader().read_info(files).num_layers == 2\n"
        "assert not {'torch', 'safetensors', 'huggingface_hub'} & set(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
