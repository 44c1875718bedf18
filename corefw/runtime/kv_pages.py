"""The KV cache's memory: raw bytes in pages, and every layer's view of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from corefw.errors import EngineError
from corefw.interfaces.attention import AttentionBackend
from corefw.interfaces.kv_cache import AttentionSpec, KVCacheSpec
from corefw.interfaces.kv_connector import LayerCache

__all__ = ["KVPages"]


class KVPages:
    """One byte buffer a size of page, [layers, blocks, page bytes]; a block id names one page in each layer.

    KV-cache groups with pages of one size use one buffer: a block belongs to one group at a time, so that the first
    layers of all groups can have the same pages, and so on. The memory isn't touched before a block is: blocks are
    cleared when the scheduler says so. The null block is cleared now, since padding may read it.

    Args:
        groups: by KV-cache group the specs of its layers here, by layer name; other pipeline stages may have them all.
        num_blocks: pages a layer, the null block included.
        device: where the cache lives.
        clears: whether ``clear`` does anything: not where the attention backend never reads what nobody has written.
    """

    def __init__(
        self,
        groups: Sequence[Mapping[str, KVCacheSpec]],
        num_blocks: int,
        device: torch.device,
        *,
        clears: bool = True,
    ) -> None:
        self._groups = groups
        self._page_bytes = [_page_bytes(specs) for specs in groups]
        num_layers: dict[int, int] = {}
        for page_bytes, specs in zip(self._page_bytes, groups, strict=True):
            if specs:
                num_layers[page_bytes] = max(num_layers.get(page_bytes, 0), len(specs))
        self._by_page_bytes = {
            page_bytes: torch.empty((count, num_blocks, page_bytes), dtype=torch.uint8, device=device)
            for page_bytes, count in num_layers.items()
        }
        self._clears = clears
        for buffer in self.buffers:
            _zero(buffer, [0])

    @property
    def buffers(self) -> list[torch.Tensor]:
        """The memory, in the order in which the groups first name the sizes of their pages."""
        return list(self._by_page_bytes.values())

    def views(self, backend: type[AttentionBackend]) -> dict[str, torch.Tensor]:
        """By layer name the pages as the backend sees them, [blocks, *PageView.shape]."""
        return {
            name: _view(self._by_page_bytes[page_bytes][index], spec, backend)
            for page_bytes, specs in zip(self._page_bytes, self._groups, strict=True)
            for index, (name, spec) in enumerate(specs.items())
        }

    def raw_layers(self) -> dict[str, LayerCache]:
        """By layer name the pages as bytes, for whoever moves them."""
        found = {}
        for group, (page_bytes, specs) in enumerate(zip(self._page_bytes, self._groups, strict=True)):
            for index, name in enumerate(specs):
                pages = self._by_page_bytes[page_bytes][index]
                found[name] = LayerCache(group=group, pages=pages, block_stride_bytes=pages.stride(0))
        return found

    def clear(self, block_ids: Sequence[Sequence[int]]) -> None:
        """Zero blocks, given by group, where that is needed."""
        if not self._clears:
            return
        joined: dict[int, list[int]] = {}
        for page_bytes, ids in zip(self._page_bytes, block_ids, strict=True):
            joined.setdefault(page_bytes, []).extend(ids)
        for page_bytes, ids in joined.items():
            if ids and page_bytes in self._by_page_bytes:
                _zero(self._by_page_bytes[page_bytes], ids)


def _zero(buffer_LKB: torch.Tensor, ids: list[int]) -> None:
    """On a CPU neighbours are cleared together, whole pages at a time; a device takes them all in one call."""
    if buffer_LKB.device.type != "cpu":
        buffer_LKB.index_fill_(1, torch.tensor(ids, device=buffer_LKB.device), 0)
        return
    ordered = sorted(ids)
    first = last = ordered[0]
    for block_id in ordered[1:]:
        if block_id > last + 1:
            buffer_LKB[:, first : last + 1].zero_()
            first = block_id
        last = block_id
    buffer_LKB[:, first : last + 1].zero_()


def _page_bytes(specs: Mapping[str, KVCacheSpec]) -> int:
    sizes = {spec.page_bytes for spec in specs.values()} or {0}
    if len(sizes) != 1:
        raise EngineError(f"layers of one KV-cache group need pages of one size, got {sorted(sizes)} bytes")
    return sizes.pop()


def _view(pages: torch.Tensor, spec: KVCacheSpec, backend: type[AttentionBackend]) -> torch.Tensor:
    view = backend.page_view(spec)
    dtype = getattr(torch, spec.dtype) if isinstance(spec, AttentionSpec) else torch.uint8
    elements = pages.reshape(-1).view(dtype)
    page_elements = spec.page_bytes // dtype.itemsize
    needed = 1 + sum((extent - 1) * stride for extent, stride in zip(view.shape, view.strides, strict=True))
    if needed * dtype.itemsize + view.extra_bytes > spec.page_bytes:
        raise EngineError(f"attention backend {backend.name} sees more in a page than its {spec.page_bytes} bytes")
    shape, strides = (len(pages), *view.shape), (page_elements, *view.strides)
    return torch.as_strided(elements, shape, strides, elements.storage_offset())
