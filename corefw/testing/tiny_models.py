"""Small random models in Hugging Face layout, with a byte-level tokenizer, for tests on a CPU.

Weights are large enough that logits differ clearly from token to token, so greedy choices are stable.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

__all__ = [
    "TINY_FAMILIES",
    "TINY_LLAMA",
    "llama_tensors",
    "tiny_config",
    "tiny_llama_config",
    "write_tiny",
    "write_tiny_llama",
    "write_tiny_tokenizer",
]

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

TINY_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256 + len(_SPECIAL),
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": 257,
    "eos_token_id": 258,
    "torch_dtype": "float32",
}

_SHARED = {key: TINY_LLAMA[key] for key in (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "max_position_embeddings", "bos_token_id", "eos_token_id",
)} | {"pad_token_id": None}  # fmt: skip
_GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 21, "tie_word_embeddings": True}

TINY_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": 8},
    "mistral": {"head_dim": 8, "sliding_window": 21},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 16},
    "gemma2": {**_GEMMA, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 20.0},
    "gemma3_text": {**_GEMMA, "sliding_window_pattern": 2, "num_hidden_layers": 4},
    "phi3": {"sliding_window": None},
}


def tiny_llama_config(**overrides: Any) -> dict[str, Any]:
    """A ``config.json``; ``overrides`` replace entries."""
    return {**TINY_LLAMA, **overrides}


def llama_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random float32 weights of a Llama configuration, by Hugging Face name."""
    random = torch.Generator().manual_seed(seed)
    width, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size

    def weight(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=random) * float(1.5 / columns**0.5)

    tensors = {"model.embed_tokens.weight": torch.randn(config["vocab_size"], width, generator=random)}
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        projections = {
            "self_attn.q_proj": (query, width, "attention_bias"),
            "self_attn.k_proj": (kv, width, "attention_bias"),
            "self_attn.v_proj": (kv, width, "attention_bias"),
            "self_attn.o_proj": (width, query, "attention_bias"),
            "mlp.gate_proj": (inner, width, "mlp_bias"),
            "mlp.up_proj": (inner, width, "mlp_bias"),
            "mlp.down_proj": (width, inner, "mlp_bias"),
        }
        for name, (rows, columns, bias) in projections.items():
            tensors[f"{layer}.{name}.weight"] = weight(rows, columns)
            if config[bias]:
                tensors[f"{layer}.{name}.bias"] = torch.randn(rows, generator=random) * 0.3
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}.{name}.weight"] = 1 + 0.2 * torch.randn(width, generator=random)
    tensors["model.norm.weight"] = 1 + 0.2 * torch.randn(width, generator=random)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = torch.randn(config["vocab_size"], width, generator=random)
    return tensors


def write_tiny_llama(path: Path, *, seed: int = 0, **overrides: Any) -> Path:
    """Write ``config.json``, ``generation_config.json``, ``model.safetensors`` and the tokenizer; returns ``path``.

    Args:
        path: the directory, made if it isn't there.
        seed: of the weights.
        overrides: entries of the configuration.
    """
    from safetensors.torch import save_file

    path.mkdir(parents=True, exist_ok=True)
    config = tiny_llama_config(**overrides)
    tokens = {key: config[key] for key in ("bos_token_id", "eos_token_id")}
    (path / "config.json").write_text(json.dumps(config, indent=2))
    (path / "generation_config.json").write_text(json.dumps(tokens))
    save_file(llama_tensors(config, seed), path / "model.safetensors", metadata={"format": "pt"})
    write_tiny_tokenizer(path)
    return path


def tiny_config(family: str, **overrides: Any) -> Any:
    """A transformers configuration of a family's tiny model; ``overrides`` replace entries."""
    from transformers import AutoConfig

    return AutoConfig.for_model(family, **{**_SHARED, **TINY_FAMILIES[family], **overrides})


def write_tiny(path: Path, family: str, *, seed: int = 0, **overrides: Any) -> Path:
    """Write a random model of a family as transformers saves it, and the tokenizer; returns ``path``.

    Needs transformers. For Llama alone, ``write_tiny_llama`` does without.

    Args:
        path: the directory, made if it isn't there.
        family: a key of ``TINY_FAMILIES``, transformers' ``model_type``.
        seed: of the weights.
        overrides: entries of the configuration.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(tiny_config(family, **overrides))
    _randomise(model, torch.Generator().manual_seed(seed))
    model.save_pretrained(path)
    write_tiny_tokenizer(path)
    return path


def _randomise(model: Any, random: torch.Generator) -> None:
    """Norms and biases differ from what they start with, so that leaving them out shows."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=random)
        if "norm" in name:
            parameter.data.add_(noise, alpha=0.2)
        elif name.endswith("bias"):
            parameter.data.copy_(noise * 0.3)
        else:
            is_table = parameter.shape[0] == model.config.vocab_size
            parameter.data.copy_(noise if is_table else noise * (1.5 / parameter.shape[1] ** 0.5))


def write_tiny_tokenizer(path: Path) -> None:
    """Write a byte-level tokenizer: ids 0 to 255 are bytes in the order of its alphabet, then three special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIAL])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIAL[1],
        "eos_token": _SPECIAL[2],
        "chat_template": _CHAT_TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
