"""Conformance suite of attention backends: what a backend declares, it must compute.

``check_backend(MyBackend)`` runs everything that the backend's capabilities claim; the single checks take a layer and a
dtype. Each raises AssertionError with the case that failed.

Shapes: S tokens of a sequence, H query heads, K KV heads, D head size.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from corefw.interfaces.attention import AttentionBackend, AttentionBatch, AttentionLayerSpec, AttentionRequest
from corefw.interfaces.kv_cache import FullAttentionSpec
from corefw.testing.suite import NotChecked, PluginSuite

__all__ = [
    "AttentionBackendSuite",
    "Sequence3",
    "check_backend",
    "check_batch_invariance",
    "check_forgotten_blocks",
    "check_matches_reference",
    "check_padding",
    "layer_to_check",
    "layers_to_check",
    "random_schedule",
    "random_sequences",
    "reference_attention",
    "run_schedule",
]

Schedule = list[list[tuple[int, int]]]
"""Steps; each a list of (sequence, number of its tokens to compute next)."""

_TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
_BLOCK_SIZES = (8, 16, 32)


@dataclass(frozen=True, slots=True)
class Sequence3:
    """Query [S, H, D], key and value [S, K, D] of one request's whole life."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


def layers_to_check(backend: type[AttentionBackend], dtype: str) -> Iterator[AttentionLayerSpec]:
    """Layers of several shapes, as far as the backend claims to support them."""
    sizes = backend.capabilities.head_sizes or (64, 8)
    for num_heads, num_kv_heads, head_size, window, soft_cap in (
        (9, 3, sizes[0], None, None),
        (4, 4, sizes[-1], None, None),
        (32, 1, sizes[0], None, None),
        (6, 2, sizes[-1], 5, None),
        (6, 2, sizes[-1], 70, None),
        (6, 2, sizes[-1], None, 10.0),
    ):
        if backend.capabilities.supports(_request(dtype, head_size, window, soft_cap)) is None:
            yield layer_to_check(num_heads, num_kv_heads, head_size, window, soft_cap)


def layer_to_check(
    num_heads: int, num_kv_heads: int, head_size: int, window: int | None = None, soft_cap: float | None = None
) -> AttentionLayerSpec:
    """A layer with the scale that models have."""
    return AttentionLayerSpec(
        name="layer", num_heads=num_heads, num_kv_heads=num_kv_heads, head_size=head_size,
        scale=head_size**-0.5, sliding_window=window, soft_cap=soft_cap,
    )  # fmt: skip


def _request(
    dtype: str, head_size: int, window: int | None, soft_cap: float | None, *, invariant: bool = False
) -> AttentionRequest:
    return AttentionRequest(
        device_type="cpu",
        dtype=dtype,
        kv_dtype=dtype,
        head_size=head_size,
        sliding_window=window is not None,
        soft_cap=soft_cap is not None,
        batch_invariant=invariant,
    )


def random_sequences(
    layer: AttentionLayerSpec, lengths: Sequence[int], dtype: torch.dtype, seed: int
) -> list[Sequence3]:
    """Sequences of the given lengths; scores are spread widely enough that masks matter."""
    noise = torch.Generator().manual_seed(seed)

    def one(length: int, heads: int) -> torch.Tensor:
        return (torch.randn(length, heads, layer.head_size, generator=noise) * 1.5).to(dtype)

    return [Sequence3(one(n, layer.num_heads), one(n, layer.num_kv_heads), one(n, layer.num_kv_heads)) for n in lengths]


def random_schedule(lengths: Sequence[int], seed: int) -> Schedule:
    """Cut the sequences into chunks and deal these into steps: prompts, long and short chunks, and decodes mixed."""
    chance = random.Random(seed)
    left = list(lengths)
    steps: Schedule = []
    while any(left):
        step = []
        for index in chance.sample(range(len(left)), len(left)):
            if left[index] and chance.random() < 0.7:
                count = min(left[index], chance.choice((1, 1, 1, 2, 5, 17, 64, 200)))
                left[index] -= count
                step.append((index, count))
        if step:
            steps.append(step)
    return steps


def reference_attention(sequence: Sequence3, layer: AttentionLayerSpec) -> torch.Tensor:
    """[S, H, D] in float64, written as the definition says."""
    group = layer.num_heads // layer.num_kv_heads
    query = sequence.query.double().transpose(0, 1)
    key = sequence.key.double().transpose(0, 1).repeat_interleave(group, 0)
    value = sequence.value.double().transpose(0, 1).repeat_interleave(group, 0)
    scores = query @ key.transpose(1, 2) * layer.scale
    if layer.soft_cap is not None:
        scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
    at = torch.arange(scores.shape[-1])
    hidden = at[None, :] > at[:, None]
    if layer.sliding_window is not None:
        hidden |= at[None, :] <= at[:, None] - layer.sliding_window
    return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value).transpose(0, 1)


def run_schedule(
    backend: type[AttentionBackend],
    layer: AttentionLayerSpec,
    sequences: Sequence[Sequence3],
    schedule: Schedule,
    *,
    block_size: int = 16,
    kv_dtype: torch.dtype | None = None,
    batch_invariant: bool = False,
    padding: int = 0,
    forget: bool = False,
    seed: int = 0,
) -> list[torch.Tensor]:
    """Compute the sequences step by step over a cache whose unused parts are NaN and whose blocks lie in random order.

    Args:
        kv_dtype: of the cache; None is the sequences' own.
        padding: rows to add to each step after its tokens, with slot -1.
        forget: the null block, full of NaN, stands in for every block that the layer's window has left behind.

    Returns:
        a sequence: [S, H, D].
    """
    dtype = sequences[0].query.dtype
    pages, tables = _cache(backend, layer, sequences, block_size, kv_dtype or dtype, seed)
    kernels = backend.implementation(layer, dtype=dtype, batch_invariant=batch_invariant)
    builder = backend.builder([layer], block_size, len(sequences))
    outputs = [torch.full_like(sequence.query, torch.nan) for sequence in sequences]
    done = [0] * len(sequences)
    for step in schedule:
        rows = [slice(done[index], done[index] + count) for index, count in step]
        for index, count in step:
            done[index] += count
        batch = _batch(step, rows, tables, block_size, padding)
        if forget and layer.sliding_window is not None:
            for place, row in enumerate(rows):
                batch.block_table[place, : max(0, row.start - layer.sliding_window + 1) // block_size] = 0
        parts = [
            torch.cat([getattr(sequences[index], part)[row] for (index, _), row in zip(step, rows, strict=True)])
            for part in ("query", "key", "value")
        ]
        query, key, value = (torch.cat((part, part.new_full((padding, *part.shape[1:]), 7.0))) for part in parts)
        kernels.write_cache(key, value, pages, batch.slot_mapping)
        out = kernels.forward(query, pages, builder.build(batch))
        assert out.shape == query.shape, f"{backend.name}: output {list(out.shape)} for query {list(query.shape)}"
        assert out.dtype == query.dtype, f"{backend.name}: output {out.dtype} for query {query.dtype}"
        assert out.untyped_storage().data_ptr() != query.untyped_storage().data_ptr(), "output aliases the query"
        start = 0
        for (index, count), row in zip(step, rows, strict=True):
            outputs[index][row] = out[start : start + count]
            start += count
    return outputs


def _cache(
    backend: type[AttentionBackend],
    layer: AttentionLayerSpec,
    sequences: Sequence[Sequence3],
    block_size: int,
    dtype: torch.dtype,
    seed: int,
) -> tuple[torch.Tensor, list[list[int]]]:
    spec = FullAttentionSpec(
        block_size=block_size,
        num_kv_heads=layer.num_kv_heads,
        head_size=layer.head_size,
        dtype=str(dtype).removeprefix("torch."),
        sliding_window=layer.sliding_window,
    )
    counts = [-(-sequence.query.shape[0] // block_size) for sequence in sequences]
    free = list(range(1, 1 + sum(counts)))
    random.Random(seed).shuffle(free)
    view = backend.page_view(spec)
    elements = spec.page_bytes // dtype.itemsize
    unused = torch.nan if dtype.is_floating_point else -1  # in int8, the bytes of scales that are NaN
    raw = torch.full((len(free) + 1, elements), unused, dtype=dtype)
    pages = raw.as_strided((len(free) + 1, *view.shape), (elements, *view.strides))
    return pages, [[free.pop() for _ in range(count)] for count in counts]


def _batch(
    step: Sequence[tuple[int, int]], rows: Sequence[slice], tables: list[list[int]], block_size: int, padding: int
) -> AttentionBatch:
    counts = torch.tensor([count for _, count in step], dtype=torch.int32)
    slots = [
        tables[index][at // block_size] * block_size + at % block_size
        for (index, _), row in zip(step, rows, strict=True)
        for at in range(row.start, row.stop)
    ]
    width = max(-(-row.stop // block_size) for row in rows)
    table = torch.zeros(len(step), width, dtype=torch.int32)
    for place, ((index, _), row) in enumerate(zip(step, rows, strict=True)):
        used = tables[index][: -(-row.stop // block_size)]
        table[place, : len(used)] = torch.tensor(used, dtype=torch.int32)
    return AttentionBatch(
        num_tokens=int(counts.sum()),
        query_starts=torch.cat((counts.new_zeros(1), counts.cumsum(0).to(torch.int32))),
        seq_lens=torch.tensor([row.stop for row in rows], dtype=torch.int32),
        block_table=table,
        slot_mapping=torch.tensor(slots + [-1] * padding, dtype=torch.int64),
        block_size=block_size,
    )


def check_matches_reference(
    backend: type[AttentionBackend],
    layer: AttentionLayerSpec,
    dtype: torch.dtype,
    *,
    lengths: Sequence[int] = (1, 40, 130, 65),
    block_size: int = 16,
    seed: int = 0,
) -> None:
    """Prompts, chunks and decodes in mixed steps agree with the float64 definition."""
    sequences = random_sequences(layer, lengths, dtype, seed)
    outputs = run_schedule(backend, layer, sequences, random_schedule(lengths, seed), block_size=block_size, seed=seed)
    for sequence, output in zip(sequences, outputs, strict=True):
        error = (output.double() - reference_attention(sequence, layer)).abs().max()
        assert error <= _TOLERANCE[dtype], f"{backend.name}: off by {error:.2e} with {layer}, {dtype}, seed {seed}"


def check_padding(backend: type[AttentionBackend], layer: AttentionLayerSpec, dtype: torch.dtype) -> None:
    """Rows beyond the batch's tokens, with slot -1, change neither the cache nor the other rows."""
    lengths = (33, 20)
    sequences = random_sequences(layer, lengths, dtype, 0)
    schedule = random_schedule(lengths, 0)
    plain = run_schedule(backend, layer, sequences, schedule)
    padded = run_schedule(backend, layer, sequences, schedule, padding=3)
    for left, right in zip(plain, padded, strict=True):
        assert torch.allclose(left, right, atol=_TOLERANCE[dtype], rtol=0), f"{backend.name}: padding changes results"


def check_batch_invariance(
    backend: type[AttentionBackend],
    layer: AttentionLayerSpec,
    dtype: torch.dtype,
    *,
    lengths: Sequence[int] = (1, 40, 130, 65),
    seed: int = 0,
) -> None:
    """Every token's result has the same bits however the work is cut, batched and paged."""
    sequences = random_sequences(layer, lengths, dtype, seed)
    alone = [
        run_schedule(backend, layer, [one], [[(0, one.query.shape[0])]], batch_invariant=True)[0] for one in sequences
    ]
    for block_size in _BLOCK_SIZES:
        if backend.capabilities.block_sizes and block_size not in backend.capabilities.block_sizes:
            continue
        schedule = random_schedule(lengths, seed + block_size)
        mixed = run_schedule(
            backend, layer, sequences, schedule, block_size=block_size, batch_invariant=True, seed=seed + block_size
        )
        for index, (left, right) in enumerate(zip(alone, mixed, strict=True)):
            assert torch.equal(left, right), (
                f"{backend.name}: sequence {index} depends on the batch with {layer}, {dtype}, "
                f"block size {block_size}, seed {seed}"
            )


def check_forgotten_blocks(
    backend: type[AttentionBackend],
    layer: AttentionLayerSpec,
    dtype: torch.dtype,
    *,
    batch_invariant: bool = False,
    lengths: Sequence[int] = (40, 150, 300),
    seed: int = 0,
) -> None:
    """Blocks that the window has left behind may be gone: results have the same bits."""
    sequences = random_sequences(layer, lengths, dtype, seed)
    schedule = random_schedule(lengths, seed)
    for block_size in backend.capabilities.block_sizes or _BLOCK_SIZES:
        kept, forgotten = (
            run_schedule(
                backend,
                layer,
                sequences,
                schedule,
                block_size=block_size,
                batch_invariant=batch_invariant,
                forget=forget,
                seed=seed,
            )
            for forget in (False, True)
        )
        for left, right in zip(kept, forgotten, strict=True):
            assert torch.equal(left, right), (
                f"{backend.name}: blocks before the window are read with {layer}, {dtype}, block size {block_size}"
            )


def check_backend(backend: type[AttentionBackend], *, seed: int = 0) -> None:
    """Everything that the backend claims to do on a CPU."""
    for dtype_name in sorted(backend.capabilities.dtypes):
        dtype = getattr(torch, dtype_name)
        for layer in layers_to_check(backend, dtype_name):
            check_matches_reference(backend, layer, dtype, seed=seed)
            check_padding(backend, layer, dtype)
            check_forgotten_blocks(backend, layer, dtype)
            asked = _request(dtype_name, layer.head_size, layer.sliding_window, layer.soft_cap, invariant=True)
            if backend.capabilities.supports(asked) is None:
                check_batch_invariance(backend, layer, dtype, seed=seed)


class AttentionBackendSuite(PluginSuite):
    """For ``corefw.attention_backends``: what is declared for a CPU is computed there."""

    plugin: ClassVar[type[AttentionBackend]]
    group = "attention_backends"
    torch_free = False

    def test_it_declares_what_it_can_do(self) -> None:
        capabilities = self.plugin.capabilities
        assert capabilities.device_types
        assert capabilities.dtypes
        assert capabilities.kv_dtypes
        assert not capabilities.block_sizes or capabilities.default_block_size in capabilities.block_sizes
        assert capabilities.block_sizes == tuple(sorted(capabilities.block_sizes)), "block_sizes don't rise"

    def test_its_pages_have_room_for_what_it_stores(self) -> None:
        for _, layer in self._cases():
            dtype = sorted(self.plugin.capabilities.dtypes)[0]
            spec = FullAttentionSpec(
                block_size=self.plugin.capabilities.default_block_size,
                num_kv_heads=layer.num_kv_heads,
                head_size=layer.head_size,
                dtype=dtype,
            )
            view = self.plugin.page_view(spec)
            assert len(view.shape) == len(view.strides)
            last = sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
            itemsize = getattr(torch, dtype).itemsize
            assert (last + 1) * itemsize + view.extra_bytes <= spec.page_bytes, f"its page needs more than {spec}"

    def test_results_are_those_of_the_definition(self) -> None:
        for dtype, layer in self._cases():
            check_matches_reference(self.plugin, layer, dtype)

    def test_padding_changes_nothing(self) -> None:
        for dtype, layer in self._cases():
            check_padding(self.plugin, layer, dtype)

    def test_blocks_behind_the_window_may_be_gone(self) -> None:
        for dtype, layer in self._cases():
            if layer.sliding_window is not None:
                check_forgotten_blocks(self.plugin, layer, dtype, lengths=(40, 150))

    def test_what_it_calls_batch_invariant_is(self) -> None:
        for dtype, layer in self._cases():
            name = str(dtype).removeprefix("torch.")
            asked = _request(name, layer.head_size, layer.sliding_window, layer.soft_cap, invariant=True)
            if self.plugin.capabilities.supports(asked) is None:
                check_batch_invariance(self.plugin, layer, dtype)

    def _cases(self) -> Iterator[tuple[torch.dtype, AttentionLayerSpec]]:
        if "cpu" not in self.plugin.capabilities.device_types:
            raise NotChecked(f"its kernels run on {', '.join(sorted(self.plugin.capabilities.device_types))} alone")
        for name in sorted(self.plugin.capabilities.dtypes):
            yield from ((getattr(torch, name), layer) for layer in layers_to_check(self.plugin, name))
