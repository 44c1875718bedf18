"""From a model directory to transformers' configuration and class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from corefw_models_transformers.refusal import Refused, shown_error

__all__ = ["NO_INTERFACE", "empty_model", "find_class"]

_AUTO = "AutoModelForCausalLM"
NO_INTERFACE = "its attention doesn't go through transformers' attention interface"
_ATTENTION_KINDS = ("attention", "full_attention", "sliding_attention", "chunked_attention")
_LENGTH_DEPENDENT = ("dynamic", "longrope")


def find_class(root: str, architecture: str, *, trusted: bool) -> tuple[PreTrainedConfig, type[PreTrainedModel]]:
    """transformers' own class where it has one, else that of the model's code, if it is trusted.

    Raises:
        Refused: there is none, or it isn't a decoder alone.
    """
    raw = json.loads((Path(root) / "config.json").read_text(encoding="utf-8"))
    known = _known_class(root, architecture, raw)
    if known is None:
        known = _brought_class(root, architecture, raw, trusted=trusted)
    _check_layer_kinds(known[0])
    _check_rope(known[0])
    return known


def empty_model(config: PreTrainedConfig, kind: type[PreTrainedModel], dtype: torch.dtype, attention: str) -> Any:
    """The model without memory for its weights.

    Raises:
        Refused: it can't be made, or not with an attention function of somebody else.
    """
    try:
        with torch.device("meta"):
            return kind._from_config(config, attn_implementation=attention, dtype=dtype).eval()
    except Exception as error:  # hundreds of model classes, each with its own idea of a wrong configuration
        if isinstance(error, KeyError) and attention in str(error):  # not among the attention classes of the family
            raise Refused(NO_INTERFACE) from None
        raise Refused(f"transformers can't make it ({shown_error(error)})") from error


def _known_class(
    root: str, architecture: str, raw: dict[str, Any]
) -> tuple[PreTrainedConfig, type[PreTrainedModel]] | None:
    if raw.get("model_type") not in CONFIG_MAPPING:
        return None
    config = _read_config(root, trusted=False)
    if config.is_encoder_decoder:
        raise Refused(f"{architecture} is an encoder with a decoder; only models that are a decoder alone can be run")
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    return (config, kind) if getattr(kind, "__name__", None) == architecture else None


def _brought_class(
    root: str, architecture: str, raw: dict[str, Any], *, trusted: bool
) -> tuple[PreTrainedConfig, type[PreTrainedModel]]:
    code = raw.get("auto_map")
    reference = code.get(_AUTO) if isinstance(code, dict) else None
    if not isinstance(reference, str):
        raise Refused(
            f"transformers has no causal language model {architecture} for the model_type {raw.get('model_type')!r}"
        )
    if "--" in reference:
        raise Refused(f"the model's code lies elsewhere ({reference}); only code in its own directory can be run")
    if not trusted:
        raise Refused(
            f"transformers has no {architecture}, and the model brings its own code ({reference}), which is run only "
            "with --trust-remote-code"
        )
    config = _read_config(root, trusted=True)
    try:
        return config, get_class_from_dynamic_module(reference, root, local_files_only=True)
    except Exception as error:  # it is code
        raise Refused(f"its own code can't be loaded ({shown_error(error)})") from error


def _read_config(root: str, *, trusted: bool) -> PreTrainedConfig:
    try:
        return AutoConfig.from_pretrained(root, trust_remote_code=trusted, local_files_only=True)
    except Exception as error:  # hundreds of classes, each with its own idea of a wrong value
        raise Refused(f"transformers can't read its configuration ({shown_error(error)})") from error


def _check_layer_kinds(config: PreTrainedConfig) -> None:
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None) or ()
    others = sorted({kind for kind in kinds if kind not in _ATTENTION_KINDS})
    if others:
        raise Refused(f"it has layers of the kind {', '.join(others)}; only layers of attention can be run")


def _check_rope(config: PreTrainedConfig) -> None:
    """transformers takes one length for a whole batch: neighbours would change a token's result."""
    found = json.dumps(getattr(config.get_text_config(), "rope_parameters", None) or {})
    for kind in _LENGTH_DEPENDENT:
        if f'"{kind}"' in found:
            raise Refused(f"its rotary embedding ({kind}) depends on the longest sequence of a batch")
