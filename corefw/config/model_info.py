"""What is known of a model before any weight is read. Torch-free; built by a model loader from the files' headers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["ModelFiles", "ModelInfo"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFiles:
    """A resolved model reference: local files only.

    Attributes:
        reference: what the user named.
        source: name of the model source that resolved it.
        root: the model directory, or the folder that holds the weight file.
        weights: weight files in loading order (one ``.gguf``; or the ``.safetensors`` shards).
        sha256: hash of what was fetched, where the source keeps one.
    """

    reference: str
    source: str
    root: str
    weights: tuple[str, ...]
    sha256: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelInfo:
    """Architecture and vocabulary of a model, in the terms of a Hugging Face ``config.json`` whatever the file format.

    Attributes:
        files: where it lies.
        loader: name of the model loader that read this.
        architecture: class name, e.g. ``LlamaForCausalLM``.
        hf_config: the normalised configuration (``hidden_size``, ``rope_scaling`` …), plain data.
        checkpoint_dtype: name of the dtype of most weights (``bfloat16``, ``float32`` …), or ``block`` for a
            block-quantised file.
        quantization: name of the quantisation method that the files are made for, if they are.
        block_types: names of the block types of its matrices, if it has such, the most frequent first.
        max_position: the longest context that the model declares.
        vocab_size: rows of the embedding (may exceed the tokenizer).
        eos_ids: end tokens (from ``generation_config.json`` where there is one, else the configuration).
        bos_id: begin token, if the model has one.
        generation_config: default sampling values the model ships, plain data.
    """

    files: ModelFiles
    loader: str
    architecture: str
    hf_config: dict[str, Any]
    checkpoint_dtype: str
    max_position: int
    vocab_size: int
    eos_ids: tuple[int, ...]
    bos_id: int | None = None
    generation_config: dict[str, Any] = field(default_factory=dict)
    quantization: str | None = None
    block_types: tuple[str, ...] = ()

    @property
    def needs_lockstep(self) -> bool:
        """Whether engines with this model compute each step together, as with experts spread over them; none so far."""
        return False

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return int(self.hf_config["num_hidden_layers"])
