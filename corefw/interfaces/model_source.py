"""ModelSource: turns what the user named into local files. Torch-free, front end only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from corefw.config.model_info import ModelFiles

__all__ = ["ModelSource", "SourceOptions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceOptions:
    """What the operator said about fetching.

    Attributes:
        cache_dir: folder for downloads; may not exist yet.
        revision: of a hub model.
        offline: never use the network.
    """

    cache_dir: str
    revision: str | None = None
    offline: bool = False


class ModelSource(ABC):
    """One way to name a model (group ``corefw.model_sources``). Asked in order of ``rank``, smallest first.

    Attributes:
        name: the plugin's name.
        rank: built-ins: local 10, gguf file 20, pypi 30, hub 90 (it takes any name).
    """

    name: ClassVar[str]
    api_version: ClassVar[int] = 1
    rank: ClassVar[int] = 50

    @abstractmethod
    def supports(self, reference: str) -> str | None:
        """None when the reference is of this source's kind, else why not. Never touches the network."""

    @abstractmethod
    def resolve(self, reference: str, options: SourceOptions) -> ModelFiles:
        """Local files, fetched first where needed. Safe to call from several processes at once.

        Raises:
            ModelSourceError: names the reference and the remedy.
        """
