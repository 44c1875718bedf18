"""Platform: what hardware there is and how it is driven. Two halves: a torch-free description and a device runtime."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from corefw.config.device_description import DeviceDescription
from corefw.errors import PluginUnavailable

if TYPE_CHECKING:
    import torch

    from corefw.config.device_ids import DeviceIds
    from corefw.config.model_info import ModelInfo
    from corefw.interfaces.graphs import GraphCapture
    from corefw.interfaces.selection import Selection

__all__ = ["DeviceDescription", "DeviceRuntime", "Platform", "Proposal"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change of a default that a platform or plugin asks for; what the user set explicitly beats it.

    Attributes:
        section: name of the config section (``cache``, ``scheduler`` …).
        field: name of the field.
        value: plain value.
        reason: one sentence, printed at start.
    """

    section: str
    field: str
    value: object
    reason: str


class Platform(ABC):
    """The torch-free half: answers questions in any process, without creating a device context.

    Attributes:
        name: the plugin's name.
        device_type: torch's device type.
        communicator: name of the communicator that moves its tensors among ranks where the user names none.
        computes_on_host: the model runs on the cores that the engine runs on, so that neither works while the other
            does.
        api_version: version of this interface that the class was written for.
    """

    name: ClassVar[str]
    device_type: ClassVar[str]
    communicator: ClassVar[str] = "gloo"
    computes_on_host: ClassVar[bool] = False
    api_version: ClassVar[int] = 1

    @classmethod
    def from_capability(cls, device: DeviceDescription) -> Self:
        """A platform that answers for a device that isn't here, as ``corefw explain --capability-file`` asks it.

        Everything but ``runtime`` works on it, and nothing looks at this machine's hardware.

        Raises:
            PluginUnavailable: the platform can't be described so (the default), or not by what the file says.
        """
        del device
        raise PluginUnavailable(f"platform {cls.name!r} can't answer from a capability file")

    @abstractmethod
    def unavailable_reason(self) -> str | None:
        """None where the hardware can be used, else why not. Cheap; never creates a device context."""

    @abstractmethod
    def dtypes(self) -> Sequence[str]:
        """Names of dtypes that have fast arithmetic here, best first."""

    @abstractmethod
    def attention_order(self) -> Sequence[str]:
        """Names of attention backends in the order in which to ask them."""

    def propose(self, model: ModelInfo, explicit: frozenset[str], *, interactive: bool) -> Sequence[Proposal]:
        """Changes of defaults. Default: none.

        Args:
            model: what will run.
            explicit: the fields the user set (``section.field``).
            interactive: somebody waits for single tokens, as a server's clients do; else whole results count.
        """
        del model, explicit, interactive
        return ()

    def device_ids(self) -> DeviceIds | None:
        """The devices that this process may use, and how they are numbered. Never creates a device context.

        Returns:
            None where devices aren't numbered, as on a CPU (the default).

        Raises:
            ConfigError: the driver's visibility variable doesn't say clearly which.
        """
        return None

    @abstractmethod
    def runtime(self, local_rank: int) -> DeviceRuntime:
        """The device half, in a worker process. Imports torch; called once per worker."""


class DeviceRuntime(ABC):
    """The worker half: one device."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device tensors live on."""

    @abstractmethod
    def total_memory_bytes(self) -> int:
        """Memory of the device that this process may use (container limits count)."""

    @abstractmethod
    def free_memory_bytes(self) -> int:
        """Memory that is free right now."""

    def cache_budget_bytes(self, headroom_bytes: int) -> int:
        """How much of the memory that is left beside weights and activations the KV cache may take by default."""
        return int(headroom_bytes * 0.9)

    @abstractmethod
    def peak_memory_bytes(self) -> int:
        """Most memory this process has used since ``reset_peak_memory`` (resident set on a CPU)."""

    @abstractmethod
    def reset_peak_memory(self) -> None:
        """Start a new measurement."""

    @abstractmethod
    def seed_everything(self, seed: int) -> None:
        """Seed what is random at start-up. Requests never use generator state."""

    def settle_weights(self, tensors: Iterable[torch.Tensor]) -> Selection | None:
        """Called once, when a model's tensors lie where they will stay; may do something for the memory they lie in.

        Returns:
            what was done and why, for the report; None where there is nothing to say.
        """
        del tensors
        return None

    def settle_memory(self) -> None:
        """Called once, after the first step: what computing takes lies where it will stay."""
        return

    def graph_capture(self, offered: Sequence[GraphCapture]) -> GraphCapture | None:
        """What records steps on this device; None (the default) where nothing does.

        Args:
            offered: by op providers, largest rank first; a platform without one of its own may adopt the first.
        """
        del offered
        return None

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until submitted work is done. A no-op on a CPU."""
