"""Hooks of media: what a model takes besides text, and how it becomes a part of the prompt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from corefw.interfaces.hooks.marker import hookspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from corefw.config.engine_config import EngineConfig

__all__ = ["MediaItem", "MediaModel", "MediaTokens", "corefw_media_model"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaItem:
    """One item of a request, fetched and decoded.

    Attributes:
        modality: ``image``, ``audio`` or ``video``.
        pixels: uint8 [height, width, 3], RGB, of an image; None for the others.
        content: the file's bytes, of audio and video; None for images.
        media_type: as the sender declared it, such as ``audio/wav``; empty where it didn't.
    """

    modality: str
    pixels: npt.NDArray[np.uint8] | None = None
    content: bytes | None = None
    media_type: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaTokens:
    """What stands in the prompt for an item.

    Attributes:
        token_ids: one a position, at least one.
        embeds: floats [positions, width] in the place of all of them; None where the ids say it all.
    """

    token_ids: Sequence[int]
    embeds: Any = None


class MediaModel(ABC):
    """A model's face for media, in the front end: it must not import torch. Called from several threads at once."""

    @property
    @abstractmethod
    def limits(self) -> Mapping[str, int]:
        """Modalities that the model takes, each with the number of items that a request may have."""

    @abstractmethod
    def encode(self, item: MediaItem) -> MediaTokens:
        """What the item becomes. A function of the item alone.

        Raises:
            RequestError: the item isn't one that the model can take; ``param`` is filled in.
        """


@hookspec
def corefw_media_model(config: EngineConfig) -> MediaModel | None:
    """Declare what the model takes besides text, and make tokens or embeddings of it.

    Called once, when the front end has its configuration (process ``front_end``, or the one of an offline ``LLM``).
    What fetches and decodes is the IO processor; with none that takes media, the model takes text.

    Args:
        config: as resolved; ``config.model_info.architecture`` says which model it is.

    Returns:
        the model's face; None for a model that isn't the plugin's. Two plugins that have one stop the start.
    """
