"""What a model class builds on besides ``corefw.models.layers`` and ``corefw.models.ops``. Imports torch."""

from __future__ import annotations

from corefw.models.decoder import DecoderForCausalLM, activation_op
from corefw.models.decoder_layers import DecoderLayer, DecoderStyle, PreNormLayer, SandwichNormLayer
from corefw.models.registry import ModelClass
from corefw.models.taps import Observer, Tap, install_taps

__all__ = [
    "DecoderForCausalLM",
    "DecoderLayer",
    "DecoderStyle",
    "ModelClass",
    "Observer",
    "PreNormLayer",
    "SandwichNormLayer",
    "Tap",
    "activation_op",
    "install_taps",
]
