"""Which engines are compared, where they are found, which weights each runs and with which settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .weights import Weights

__all__ = ["CORES", "KV_CACHE_MIB", "Engine", "find_engines"]

CORES = len(os.sched_getaffinity(0))
MAX_MODEL_LEN = 2048
KV_CACHE_MIB = 256
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine with one form of the weights.

    Attributes:
        name: in results.
        label: for people.
        own: whether it is corefw.
        form: of the weights: a key of ``Weights.paths``.
        kind: engines of one kind compute with the same numbers or as many bits: ``bf16``, ``gguf``, ``int8``, ``int4``.
        driver: module of the driver.
        python: interpreter of its environment.
        options: for the driver.
        environment: variables of its processes.
        server: command of its HTTP server, with ``{weights}`` and ``{port}``; None where it has none.
        start_timeout_s: how long a load may take.
        quick_start: whether starting it often costs little.
    """

    name: str
    label: str
    form: str
    kind: str
    driver: str
    python: Path
    options: dict[str, Any]
    own: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    server: tuple[str, ...] | None = None
    start_timeout_s: float = 120.0
    quick_start: bool = True


def find_engines(peers: Path, weights: Weights, names: list[str] | None = None) -> list[Engine]:
    """Engines whose environment and weights are there, corefw's first.

    Args:
        peers: what ``scripts/bench_peers.sh`` filled.
        weights: of the model.
        names: only these.
    """
    return [
        engine
        for engine in _all(peers, weights)
        if engine.form in weights.paths and engine.python.exists() and (names is None or engine.name in names)
        if engine.driver != "drive_transformers" or _has(engine.python, "transformers")
    ]


def _has(python: Path, module: str) -> bool:
    check = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([str(python), "-c", check], check=False).returncode == 0


def _all(peers: Path, weights: Weights) -> Iterator[Engine]:
    length = min(MAX_MODEL_LEN, weights.max_position)
    yield from _corefw(length)
    yield _vllm(peers / "vllm", length)
    for name in ("fp16", "int8", "int4"):
        yield _openvino(peers / "openvino" / "bin" / "python", name)
    yield from _llama(peers / "llama")
    yield Engine(
        name="transformers", label="transformers, bf16", form="hf", kind="bf16", driver="drive_transformers",
        python=Path(sys.executable), options={"dtype": "bfloat16"}, environment=_OFFLINE,
    )  # fmt: skip


def _corefw(max_model_len: int) -> Iterator[Engine]:
    python = Path(sys.executable)
    shared = {"max_model_len": max_model_len, "kv_cache_memory": KV_CACHE_MIB * 2**20, "generation_config": "none"}
    # As OpenVINO has it, the output head is in eight bits also where other layers have four.
    head = {"quantization_config": json.dumps({"lm_head": "int8_per_channel"}, separators=(",", ":"))}
    for form, kind, label, more in (
        ("hf", "bf16", "corefw, bf16", {"dtype": "bfloat16"}),
        ("gguf", "gguf", "corefw, the GGUF file", {"dtype": "auto"}),
        ("hf", "int8", "corefw, int8 weights", {"quantization": "int8_per_channel", **head}),
        ("hf", "int4", "corefw, int4 weights", {"quantization": "int4_per_group", **head}),
    ):
        options = {**shared, **more}
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        flags = [flag.replace("{", "{{").replace("}", "}}") for flag in flags]  # they aren't places to fill
        yield Engine(
            name=f"corefw-{kind}", label=label, own=True, form=form, kind=kind, driver="drive_corefw", python=python,
            options=options, environment=_OFFLINE,
            server=(str(python.parent / "corefw"), "serve", "{weights}", "--host=127.0.0.1", "--port={port}", *flags),
        )  # fmt: skip


def _vllm(folder: Path, max_model_len: int) -> Engine:
    settings = {"dtype": "bfloat16", "max_model_len": max_model_len, "max_num_seqs": 64}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    return Engine(
        name="vllm-bf16", label="vLLM, bf16", form="hf", kind="bf16", driver="drive_vllm",
        python=folder / "bin" / "python", options=settings, start_timeout_s=600, quick_start=False,
        environment={**_OFFLINE, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": cores,
                     "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "WARNING"},
        # Its command asks for a distribution of another name than this one has.
        server=(
            str(folder / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server", "--model={weights}",
            "--host=127.0.0.1", "--port={port}", *flags,
        ),
    )  # fmt: skip


def _openvino(python: Path, name: str) -> Engine:
    scheduler = {
        "cache_size": 1, "enable_prefix_caching": True, "max_num_seqs": 64, "max_num_batched_tokens": MAX_MODEL_LEN,
    }  # fmt: skip
    return Engine(
        name=f"openvino-{name}", label=f"OpenVINO GenAI, {name}", form=f"openvino-{name}",
        kind="bf16" if name == "fp16" else name, driver="drive_openvino", python=python, environment=_OFFLINE,
        options={"scheduler": scheduler, "properties": {"INFERENCE_NUM_THREADS": CORES}},
    )  # fmt: skip


def _llama(folder: Path) -> Iterator[Engine]:
    """With flash attention and without: which is faster depends on the model and the context."""
    libraries = folder / "llama.cpp"
    flash = Engine(
        name="llama-gguf", label="llama.cpp, the GGUF file, flash attention", form="gguf", kind="gguf",
        driver="drive_llama", python=folder / "bin" / "python",
        options={"context": MAX_MODEL_LEN, "ubatch": 512, "threads": CORES, "flash_attention": 1},
        environment={"LLAMA_CPP_LIB_PATH": str(libraries), "LD_LIBRARY_PATH": str(libraries)},
        server=(
            str(libraries / "llama-server"), "--model", "{weights}", "--host", "127.0.0.1", "--port", "{port}",
            "--threads", str(CORES), "--parallel", "8", "--ctx-size", str(8 * 1024), "--flash-attn", "on", "--no-webui",
        ),
    )  # fmt: skip
    yield flash
    yield replace(
        flash, name="llama-gguf-plain", label="llama.cpp, the GGUF file", server=None,
        options={**flash.options, "flash_attention": 0},
    )  # fmt: skip
