"""What is decided at start-up, after the device was measured. Told to everybody before anything uses it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RuntimePlan"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RuntimePlan:
    """Sizes and choices that hold from now on.

    Attributes:
        num_blocks: KV blocks in the pool, the null block included.
        block_size: tokens a block.
        max_model_len: fitted: asked for or declared, and never more than the cache can hold.
        kv_cache_bytes: size of the cache.
        attention_backend: chosen name.
        layer_groups: per KV-cache group the names of its layers.
        group_block_sizes: per KV-cache group the tokens of its blocks; empty: ``block_size``.
        decisions: (what, chosen, why).
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    kv_cache_bytes: int
    attention_backend: str
    layer_groups: tuple[tuple[str, ...], ...]
    group_block_sizes: tuple[int, ...] = ()
    decisions: tuple[tuple[str, str, str], ...] = ()
