"""What layers get when they are built: device, arithmetic, ops, ranks. There is no global current anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from corefw.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from corefw.interfaces.attention import AttentionBackend
    from corefw.models.ops.binder import OpBinder
    from corefw.models.quantization import QuantizationPlan

__all__ = ["BuildContext", "Stage", "TensorParallel"]


def _identity(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """This process's place among the ranks that share each layer.

    Attributes:
        rank: 0 ≤ rank < size.
        size: ranks.
        all_reduce: sum over ranks; may work in place.
        all_gather: every rank's tensor (all of one shape), joined along the last dimension in rank order.
    """

    rank: int = 0
    size: int = 1
    all_reduce: Callable[[torch.Tensor], torch.Tensor] = _identity
    all_gather: Callable[[torch.Tensor], torch.Tensor] = _identity


@dataclass(frozen=True, slots=True)
class Stage:
    """Which part of the layers a rank holds.

    Attributes:
        rank: 0 ≤ rank < size; 0 has the first layers, and the embedding.
        size: stages.
    """

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether tokens enter here."""
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        """Whether logits come out here."""
        return self.rank == self.size - 1

    def layers(self, num_layers: int) -> range:
        """The layers held, of so many. What doesn't divide goes to the middle: the ends have the vocabulary as well.

        Raises:
            ConfigError: there are fewer layers than stages.
        """
        if num_layers < self.size:
            raise ConfigError(f"the model's {num_layers} layers are too few for --pipeline-parallel-size {self.size}")
        share, num_left = divmod(num_layers, self.size)
        sizes = [share] * self.size
        for back in range(num_left):  # never to the last one, whose head is the largest product
            sizes[-2 - back] += 1
        start = sum(sizes[: self.rank])
        return range(start, start + sizes[self.rank])


@dataclass(frozen=True, slots=True)
class BuildContext:
    """Everything a layer may ask while it is built.

    Attributes:
        device: where parameters live.
        dtype: of parameters and activations.
        dtype_name: the same, as configurations spell it.
        batch_invariant: a token's result must not depend on the rest of the batch.
        binder: gives callables for named ops.
        tp: place among the tensor-parallel ranks.
        attention_backend: chosen at start.
        max_model_len: positions that a rotary table has to cover.
        kv_dtype_name: of the KV cache; None: as activations.
        hybrid_kv: layers with a sliding window say so to the allocator, which then gives back what they no longer read;
            else every layer keeps every token.
        taps: names of the tap points to build in, e.g. ``layers.3.residual``.
        stage: which layers this process holds.
        quantization: how weights may be held in fewer bits; None where they are all plain.
        holds_weights: whether parameters get memory at once; not where others take their place.
    """

    device: torch.device
    dtype: torch.dtype
    dtype_name: str
    batch_invariant: bool
    binder: OpBinder
    tp: TensorParallel
    attention_backend: type[AttentionBackend]
    max_model_len: int
    kv_dtype_name: str | None = None
    hybrid_kv: bool = False
    taps: frozenset[str] = field(default_factory=frozenset)
    stage: Stage = Stage()
    quantization: QuantizationPlan | None = None
    holds_weights: bool = True
