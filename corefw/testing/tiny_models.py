"""Small random models in Hugging Face layout, with a byte-level tokenizer, for tests on a CPU.

Weights are large enough that logits differ clearly from token to token, so greedy choices are stable.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

__all__ = ["TINY_LLAMA", "llama_tensors", "tiny_llama_config", "write_tiny_llama", "write_tiny_tokenizer"]

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
