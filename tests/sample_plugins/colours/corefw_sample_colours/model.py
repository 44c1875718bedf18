"""The model: a decoder like any other, in which an image stands as embeddings."""

from __future__ import annotations

from corefw.sdk.models import DecoderForCausalLM


class ColoursForCausalLM(DecoderForCausalLM):
    """Sees what the front end puts in its first layer."""
