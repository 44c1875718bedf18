"""The running engine as a plugin of the front end uses it: requests in, updates of text and tokens out."""

from __future__ import annotations

from corefw.frontend.output_processor import GenerationUpdate, TokenLogprob
from corefw.frontend.sampling_defaults import SamplingDefaults
from corefw.frontend.text_engine import TextEngine
from corefw.interfaces.server_state import ServedEngine

__all__ = ["GenerationUpdate", "SamplingDefaults", "ServedEngine", "TextEngine", "TokenLogprob"]
