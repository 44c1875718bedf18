"""The model's face in the front end: an image is the mean colours of its quarters, one position each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from corefw.errors import RequestError
from corefw.interfaces.hooks.media import MediaItem, MediaModel, MediaTokens
from corefw.interfaces.platform import Proposal
from corefw.sdk.config import EngineConfig, ModelInfo
from corefw.sdk.plugins import hookimpl

ARCHITECTURE = "ColoursForCausalLM"


class Colours(MediaModel):
    """Four positions an image."""

    def __init__(self, width: int) -> None:
        self._width = width

    @property
    def limits(self) -> Mapping[str, int]:
        """Two images a request."""
        return {"image": 2}

    def encode(self, item: MediaItem) -> MediaTokens:
        """Each embedding repeats red, green and blue, from -1 to 1."""
        assert item.pixels is not None, "images have pixels"
        if min(item.pixels.shape[:2]) < 2:
            raise RequestError("an image must be at least 2 pixels wide and high")
        rows = np.array_split(item.pixels, 2)
        quarters = [quarter for row in rows for quarter in np.array_split(row, 2, axis=1)]
        colours = np.stack([quarter.mean((0, 1)) for quarter in quarters]) / 127.5 - 1
        return MediaTokens(token_ids=[0] * 4, embeds=colours[:, np.arange(self._width) % 3])


@hookimpl
def corefw_media_model(config: EngineConfig) -> Colours | None:
    info = config.model_info
    return Colours(info.hf_config["hidden_size"]) if info.architecture == ARCHITECTURE else None


@hookimpl
def corefw_propose(model: ModelInfo) -> Sequence[Proposal]:
    if model.architecture != ARCHITECTURE:
        return []
    return [Proposal("model", "enable_prompt_embeds", True, "images enter this model as embeddings")]
