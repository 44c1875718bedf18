"""Runs a model over paged KV without an engine: for tests of models, layers and attention backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from corefw.builtins.attention.torch_attention import TorchAttention
from corefw.builtins.ops.torch_ops import TorchOps
from corefw.config.model_info import ModelFiles, ModelInfo
from corefw.interfaces.attention import AttentionBackend, AttentionBatch
from corefw.interfaces.op_provider import OpProvider
from corefw.models.layers.context import BuildContext, TensorParallel
from corefw.models.layers.forward_context import ForwardContext, set_forward_context
from corefw.models.ops.binder import OpBinder

__all__ = ["PagedLoop", "cpu_build_context", "model_info"]


def cpu_build_context(
    dtype: str = "float32",
    *,
    tp: TensorParallel | None = None,
    taps: frozenset[str] = frozenset(),
    max_model_len: int = 256,
    hybrid_kv: bool = False,
    providers: Sequence[OpProvider] = (),
    attention_backend: type[AttentionBackend] = TorchAttention,
) -> BuildContext:
    """A build context for the CPU; ``providers`` are asked besides the built-in one."""
    invariant = dtype == "float32"
    return BuildContext(
        device=torch.device("cpu"),
        dtype=getattr(torch, dtype),
        dtype_name=dtype,
        batch_invariant=invariant,
        binder=OpBinder([*providers, TorchOps()], device_type="cpu", dtype=dtype, batch_invariant=invariant),
        tp=tp or TensorParallel(),
        attention_backend=attention_backend,
        max_model_len=max_model_len,
        hybrid_kv=hybrid_kv,
        taps=taps,
    )


def model_info(hf_config: Mapping[str, Any], root: str = "") -> ModelInfo:
    """What a loader would say of a ``config.json``."""
    return ModelInfo(
        files=ModelFiles(reference=root, source="local", root=root, weights=()),
        loader="safetensors",
        architecture=hf_config["architectures"][0],
        hf_config=dict(hf_config),
        checkpoint_dtype="float32",
        max_position=int(hf_config["max_position_embeddings"]),
        vocab_size=int(hf_config["vocab_size"]),
        eos_ids=(int(hf_config["eos_token_id"]),),
    )


class PagedLoop:
    """Sequences that grow step by step. A sequence is known by a number that the caller picks.

    Args:
        model: a model of the group ``model_plugins``, with weights.
        build: what it was built with.
        block_size: tokens a page.
        num_blocks: pages in all; unused ones hold NaN.
    """

    def __init__(self, model: Any, build: BuildContext, *, block_size: int = 16, num_blocks: int = 200) -> None:
        self._model = model
        self._block_size = block_size
        self._free = list(range(num_blocks - 1, 0, -1))
        self._tables: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}
        layers = model.attention_layers
        for layer in layers:
            view = build.attention_backend.page_view(layer.kv_cache_spec(block_size))
            layer.bind_pages(torch.full((num_blocks, *view.shape), torch.nan, dtype=build.dtype))
        self._names = [layer.spec.name for layer in layers]
        self._builder = build.attention_backend.builder([layer.spec for layer in layers], block_size, 64)

    @torch.inference_mode()
    def step(self, chunks: Mapping[int, Sequence[int]]) -> dict[int, torch.Tensor]:
        """Compute the next tokens of some sequences in one batch.

        Returns:
            a sequence: logits after each of its tokens, [tokens, V].
        """
        starts, ids, positions, slots = [0], list[int](), list[int](), list[int]()
        for sequence, tokens in chunks.items():
            for token in tokens:
                ids.append(token)
                positions.append(self._lengths.get(sequence, 0))
                slots.append(self._next_slot(sequence))
            starts.append(len(ids))
        batch = self._batch(list(chunks), starts, slots)
        metadata = self._builder.build(batch)
        context = ForwardContext(dict.fromkeys(self._names, metadata), dict.fromkeys(self._names, batch.slot_mapping))
        with set_forward_context(context):
            hidden = self._model(torch.tensor(ids), torch.tensor(positions))
        logits = self._model.compute_logits(hidden)
        return {sequence: logits[starts[i] : starts[i + 1]] for i, sequence in enumerate(chunks)}

    def greedy(self, sequence: int, prompt: Sequence[int], num_tokens: int, *, chunk: int = 1000) -> list[int]:
        """Continue a prompt with the likeliest tokens, the prompt computed in chunks."""
        for start in range(0, len(prompt), chunk):
            logits = self.step({sequence: prompt[start : start + chunk]})[sequence]
        tokens = [int(logits[-1].argmax())]
        while len(tokens) < num_tokens:
            tokens.append(int(self.step({sequence: tokens[-1:]})[sequence][-1].argmax()))
        return tokens

    def _next_slot(self, sequence: int) -> int:
        at = self._lengths.get(sequence, 0)
        table = self._tables.setdefault(sequence, [])
        if at == len(table) * self._block_size:
            table.append(self._free.pop())
        self._lengths[sequence] = at + 1
        return table[-1] * self._block_size + at % self._block_size

    def _batch(self, sequences: Sequence[int], starts: list[int], slots: list[int]) -> AttentionBatch:
        width = max(len(self._tables[sequence]) for sequence in sequences)
        table = [self._tables[sequence] + [0] * (width - len(self._tables[sequence])) for sequence in sequences]
        return AttentionBatch(
            num_tokens=starts[-1],
            query_starts=torch.tensor(starts, dtype=torch.int32),
            seq_lens=torch.tensor([self._lengths[sequence] for sequence in sequences], dtype=torch.int32),
            block_table=torch.tensor(table, dtype=torch.int32),
            slot_mapping=torch.tensor(slots, dtype=torch.int64),
            block_size=self._block_size,
        )
