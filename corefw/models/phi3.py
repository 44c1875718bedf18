"""Phi-3 and Phi-4 text models: Llama's shape, stored with joined projections, partly rotated heads, long rope."""

from __future__ import annotations

from corefw.models.decoder import DecoderForCausalLM

__all__ = ["Phi3ForCausalLM"]


class Phi3ForCausalLM(DecoderForCausalLM):
    """Dense Phi-3 models. Checkpoints have ``qkv_proj`` and ``gate_up_proj`` as they are held here."""

    packed = {}
