"""Runs a model without weights or data, and says what it needs from attention, or why it can't be run here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from corefw_models_transformers.experts import RECORDING_EXPERTS, use_experts
from corefw_models_transformers.fixed_order import FixedOrder
from corefw_models_transformers.layer_calls import RECORDING, CallRecord, LayerCall, recording
from corefw_models_transformers.linear import BoundLinear, Linear, replace_linears
from corefw_models_transformers.model_class import NO_INTERFACE, empty_model, find_class
from corefw_models_transformers.op_trace import OpTrace
from corefw_models_transformers.refusal import Refused, shown_error
from corefw_models_transformers.split_model import SplitModel

__all__ = ["Inspection", "inspect_model"]

_NUM_TOKENS = 13  # no size that a model has


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """A model that can be run.

    Attributes:
        config: transformers' configuration.
        kind: transformers' class.
        layers: what each layer asks of attention, in order.
        read_elsewhere: names of linear layers whose weights others read, too.
    """

    config: PreTrainedConfig
    kind: type[PreTrainedModel]
    layers: tuple[LayerCall, ...]
    read_elsewhere: frozenset[str]

    def sizes(self) -> dict[str, Any]:
        """What ``ModelImplementation.describe`` has to say."""
        text, first = self.config.get_text_config(), self.layers[0]
        windows = [layer.sliding_window for layer in self.layers if layer.sliding_window is not None]
        return {
            "hidden_size": text.hidden_size,
            "num_hidden_layers": len(self.layers),
            "num_attention_heads": first.num_heads,
            "num_key_value_heads": first.num_kv_heads,
            "head_dim": first.head_size,
            "vocab_size": text.vocab_size,
            "max_position_embeddings": _max_position(self.config),
            "sliding_window": max(windows, default=None),
            "use_sliding_window": bool(windows),
            "layer_types": [
                "full_attention" if layer.sliding_window is None else "sliding_attention" for layer in self.layers
            ],
            "attn_logit_softcapping": next((layer.soft_cap for layer in self.layers if layer.soft_cap), None),
            "tie_word_embeddings": None,  # transformers decides, once it has seen the weights
        }


def inspect_model(root: str, architecture: str, dtype: str, *, trusted: bool) -> Inspection:
    """Look at a model directory.

    Raises:
        Refused: with the reason.
    """
    config, kind = find_class(root, architecture, trusted=trusted)
    if getattr(config, "quantization_config", None):
        raise Refused("its weights are quantised")
    model = empty_model(config, kind, getattr(torch, dtype), RECORDING)
    layers, read_elsewhere = _run(model, config, fixed_order=dtype == "float32")
    if _max_position(config) is None:
        raise Refused("its configuration doesn't state a longest context")
    return Inspection(config=config, kind=kind, layers=tuple(layers), read_elsewhere=frozenset(read_elsewhere))


def _max_position(config: PreTrainedConfig) -> int | None:
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    return longest if isinstance(longest, int) and longest > 0 else None


def _run(model: nn.Module, config: PreTrainedConfig, *, fixed_order: bool) -> tuple[list[LayerCall], set[str]]:
    names = {module: name for name, module in model.named_modules()}
    replace_linears(model, _shaped)
    # The stand-in for a product doesn't look at its weight.
    weights = {id(module.weight): name for name, module in model.named_modules() if isinstance(module, BoundLinear)}
    use_experts(model, RECORDING_EXPERTS)
    split = SplitModel(model)
    ids, positions = (torch.zeros(_NUM_TOKENS, dtype=torch.int64, device="meta") for _ in range(2))
    trace = OpTrace(positions, _NUM_TOKENS, weights)
    record = CallRecord(names=names, max_position=_max_position(config))
    order = FixedOrder(_shaped) if fixed_order else nullcontext()
    try:
        with torch.no_grad(), recording(record), order, trace:
            # With a mask given, nobody looks for packed sequences among positions that have no values.
            hidden = split.hidden(ids, positions, attention_mask=torch.ones_like(ids)[None])
            split.logits(hidden)
    except Refused:
        raise
    except Exception as error:  # whatever a class needs that isn't there
        raise Refused(f"it can't be run on its own tokens alone ({shown_error(error)})") from error
    _check_layers(record.calls, config.get_text_config().num_hidden_layers)
    _check_trace(trace, [*(tensor for pair in record.inputs for tensor in pair), hidden], fixed_order=fixed_order)
    return record.calls, trace.read


def _check_trace(trace: OpTrace, results: Sequence[torch.Tensor], *, fixed_order: bool) -> None:
    if trace.mixing:
        raise Refused(
            f"it mixes tokens outside attention ({', '.join(sorted(trace.mixing))}), as state-space and convolution "
            "layers do"
        )
    if trace.uses_places(results):
        raise Refused("it works out positions of its own instead of taking those of the request")
    if not trace.uses_positions(results):
        raise Refused("it doesn't take positions (as with ALiBi)")
    if fixed_order and trace.unordered:
        raise Refused(
            f"in float32 a token's bits must not depend on its batch, and its {', '.join(sorted(trace.unordered))} has "
            "no fixed order here; choose --dtype bfloat16"
        )


def _check_layers(layers: Sequence[LayerCall], num_layers: int) -> None:
    if not layers:
        raise Refused(NO_INTERFACE)
    repeated = [name for name, count in Counter(layer.module for layer in layers).items() if count > 1]
    if repeated:
        raise Refused(f"it uses the attention of {repeated[0]} more than once")
    if len(layers) != num_layers:
        raise Refused(
            f"{len(layers)} of its {num_layers} layers have attention through transformers' attention interface; what "
            "the others do has no place in the KV cache"
        )
    if len({(layer.num_heads, layer.num_kv_heads, layer.head_size) for layer in layers}) > 1:
        raise Refused("its layers differ in the number or the size of their heads")


def _shaped(in_features: int, out_features: int) -> Linear:
    """A product of the right shape that comes from the right input."""
    del in_features

    def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        del weight, bias
        return input[:, :1].expand(-1, out_features).contiguous()

    return linear
