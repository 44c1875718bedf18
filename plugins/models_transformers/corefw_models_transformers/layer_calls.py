"""What a model asks of attention, layer by layer, found by running it without data.

Shapes: T tokens, H query heads, K KV heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface

from corefw_models_transformers.refusal import Refused

__all__ = ["RECORDING", "CallRecord", "LayerCall", "recording"]

RECORDING = "corefw_recording"
_MAX_SEEN = 2**20
# Tensors that attention functions get and that change nothing about who sees whom, or how much.
_HARMLESS = frozenset({"position_ids", "cache_position", "position_embeddings", "input_ids"})


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerCall:
    """One layer's attention, in the terms of ``AttentionLayerSpec``.

    Attributes:
        module: name of the module that computes it.
    """

    module: str
    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    sliding_window: int | None
    soft_cap: float | None


@dataclass
class CallRecord:
    """Collects the calls of one run.

    Attributes:
        names: of the model's modules.
        max_position: positions that the model declares; masks are looked at up to there.
        inputs: query and key of every call.
    """

    names: dict[nn.Module, str]
    max_position: int | None
    calls: list[LayerCall] = field(default_factory=list)
    inputs: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    masks: list[tuple[torch.Tensor, int | None]] = field(default_factory=list)

    def window(self, mask: torch.Tensor | None, stated: int | None) -> int | None:
        """What the mask says; what the call states only where there is none."""
        if mask is None:
            return stated
        for made, window in self.masks:
            if mask is made:
                return window
        raise Refused("it builds an attention mask or bias of its own (such as ALiBi)")


_current: ContextVar[CallRecord] = ContextVar("corefw_call_record")


@contextmanager
def recording(record: CallRecord) -> Iterator[CallRecord]:
    """Models with the attention ``RECORDING`` write to ``record`` inside the ``with`` block."""
    token = _current.set(record)
    try:
        yield record
    finally:
        _current.reset(token)


def _record(
    module: nn.Module,
    query_1HTD: torch.Tensor,
    key_1KTD: torch.Tensor,
    value_1KTD: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    record = _current.get()
    _check_shapes(query_1HTD, key_1KTD, value_1KTD)
    _check_others(others)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if attention_mask is None and not causal:
        raise Refused("its attention isn't causal")
    head_size = query_1HTD.shape[-1]
    call = LayerCall(
        module=record.names[module],
        num_heads=query_1HTD.shape[1],
        num_kv_heads=key_1KTD.shape[1],
        head_size=head_size,
        scale=float(head_size**-0.5 if scaling is None else scaling),
        sliding_window=record.window(attention_mask, sliding_window),
        soft_cap=float(softcap) if softcap else None,
    )
    record.calls.append(call)
    record.inputs.append((query_1HTD, key_1KTD))
    return query_1HTD.transpose(1, 2).contiguous(), None


def _check_shapes(query_1HTD: torch.Tensor, key_1KTD: torch.Tensor, value_1KTD: torch.Tensor) -> None:
    if value_1KTD.shape[-1] != key_1KTD.shape[-1]:
        raise Refused(
            f"its keys have {key_1KTD.shape[-1]} elements a head and its values {value_1KTD.shape[-1]} (as in latent "
            "attention); the KV cache needs one size"
        )
    if key_1KTD.shape[2] != query_1HTD.shape[2]:
        raise Refused("it has attention to something else than its own tokens (cross attention)")


def _check_others(others: dict[str, Any]) -> None:
    if others.get("s_aux") is not None:
        raise Refused("it has attention sinks")
    unknown = [name for name, value in others.items() if isinstance(value, torch.Tensor) and name not in _HARMLESS]
    if unknown:
        raise Refused(f"its attention needs {', '.join(unknown)}, which paged attention has no place for")


def _mask(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    mask_function: Callable[..., torch.Tensor],
    device: torch.device,
    **_: Any,
) -> torch.Tensor:
    """Stands for a mask: remembers the window that its rule describes."""
    record = _current.get()
    stand_in = torch.empty((batch_size, 1, q_length, kv_length), dtype=torch.bool, device=device)
    record.masks.append((stand_in, _window_of(mask_function, min(record.max_position or _MAX_SEEN, _MAX_SEEN))))
    return stand_in


def _window_of(rule: Callable[..., torch.Tensor], num_positions: int) -> int | None:
    """The window of a causal rule, None where every earlier token is seen; looked up for a few positions."""
    last = num_positions - 1
    seen = {position: _num_seen(rule, position, num_positions) for position in {last, max(last - 1, 0), last // 2}}
    window = seen[last]
    if any(count != min(position + 1, window) for position, count in seen.items()):
        raise Refused("its attention mask is neither causal nor a sliding window")
    return None if window == num_positions else window


def _num_seen(rule: Callable[..., torch.Tensor], position: int, num_positions: int) -> int:
    zero, keys = torch.tensor(0), torch.arange(num_positions + 1)
    try:
        seen = torch.as_tensor(rule(zero, zero, torch.tensor(position), keys)).expand(keys.shape)
        count = int(seen.sum())
        is_window = bool(seen[position + 1 - count : position + 1].all())
    except (RuntimeError, NotImplementedError, IndexError):  # it looks at the tokens of the run
        is_window = False
    if not is_window:
        raise Refused("its attention mask is neither causal nor a sliding window")
    return count


AttentionInterface.register(RECORDING, _record)
AttentionMaskInterface.register(RECORDING, _mask)
