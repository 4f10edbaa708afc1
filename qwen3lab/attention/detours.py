"""What the hybrid backend leaves out, put back, so that its cost can be measured: `ablate="kv-view"`, `"host-route"`.

Each gives the same tokens as the backend it wraps. Nothing but a measurement should ask for one.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from qwen3lab.attention.base import AttentionBackend, Batch, LayerCache
from qwen3lab.attention.hybrid import HybridAttention
from qwen3lab.step import StepKind


class CopiedPages:
    """ablate="kv-view": pages are gathered into a contiguous second cache in every layer, as if a kernel needed one."""

    def __init__(self, backend: AttentionBackend) -> None:
        self._backend = backend
        self.name = backend.name

    def provider(self, kind: StepKind) -> str:
        return f"{self._backend.provider(kind)}, over a copy of the pages"

    def prepare(self, batch: Batch) -> None:
        rows, width = batch.block_table.shape
        table = torch.arange(rows * width, dtype=torch.int32, device=batch.block_table.device).view(rows, width)
        pages = tuple(tuple(range(b * width, b * width + len(mine))) for b, mine in enumerate(batch.pages_host))
        self._copied = replace(batch, block_table=table, pages_host=pages)
        self._backend.prepare(self._copied)

    def attend(self, q: torch.Tensor, cache: LayerCache, batch: Batch) -> torch.Tensor:
        table = batch.block_table.flatten()
        copied = LayerCache(*(pages.index_select(0, table) for pages in cache))
        return self._backend.attend(q, copied, self._copied)


class AskedRoute(HybridAttention):
    """ablate="host-route": every layer asks the device for its longest query, and waits, before it knows its kernel."""

    def provider(self, kind: StepKind) -> str:
        return f"{super().provider(kind)}, its route asked of the device"

    def prepare(self, batch: Batch) -> None:
        self._prefill.prepare(batch)
        self._decode.prepare(batch)

    def attend(self, q: torch.Tensor, cache: LayerCache, batch: Batch) -> torch.Tensor:
        longest = int(batch.cu_seqlens_q.diff().max())
        return (self._decode if longest == 1 else self._prefill).attend(q, cache, batch)
