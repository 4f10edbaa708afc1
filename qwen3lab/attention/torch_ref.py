"""The plain backend: torch's scaled_dot_product_attention over the pages, row by row, on any device.

A row whose pages happen to follow one another is read in place; otherwise its pages are gathered first. Only positions
below the row's length are ever touched, so what a free or half-filled page holds cannot matter.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from qwen3lab.attention.base import Batch, LayerCache
from qwen3lab.step import StepKind


class TorchAttention:
    """attn_backend="torch"; under the name of another backend where that has nothing of its own to run on."""

    def __init__(self, name: str = "torch") -> None:
        self.name = name

    def provider(self, kind: StepKind) -> str:
        return "torch.nn.functional.scaled_dot_product_attention"

    def prepare(self, batch: Batch) -> None:
        pass

    def attend(self, q: torch.Tensor, cache: LayerCache, batch: Batch) -> torch.Tensor:
        rows = [
            attend_row(query, history(cache.k, b, batch), history(cache.v, b, batch))
            for b, query in enumerate(q.split(batch.query_lens_host))
        ]
        return rows[0] if len(rows) == 1 else torch.cat(rows)


def history(pages: torch.Tensor, b: int, batch: Batch) -> torch.Tensor:
    """Row b's keys or values so far, [1, Hkv, n, D]: a view where its pages are consecutive, else a gathered copy."""
    length, first = batch.seq_lens_host[b], batch.run_starts[b]
    _, page_size, num_kv_heads, dim = pages.shape
    if first is None:
        pages, first = pages.index_select(0, batch.block_table[b, : len(batch.pages_host[b])]), 0
    # One op instead of a chain of slices and transposes, which at a layer and a row each would be half of a step.
    width = num_kv_heads * dim
    return pages.as_strided((1, num_kv_heads, length, dim), (0, dim, width, 1), first * page_size * width)


def attend_row(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One sequence: q [t, Hq, D] are the last t of the n positions that k, v [1, Hkv, n, D] hold -> [t, Hq, D].

    The query heads of a KV head are folded beside it, so keys and values are read once for the whole group.
    """
    t, num_heads, dim = q.shape
    _, num_kv_heads, n, _ = k.shape
    group = num_heads // num_kv_heads
    if t == 1:  # decode: the group's heads are the query rows; there is nothing to mask
        return F.scaled_dot_product_attention(q.view(1, num_kv_heads, group, dim), k, v).reshape(1, num_heads, dim)
    grouped = q.view(t, num_kv_heads, group, dim).permute(1, 2, 0, 3)  # [Hkv, group, t, D]
    keys = k[0, :, None].expand(-1, group, -1, -1)
    values = v[0, :, None].expand(-1, group, -1, -1)
    # Query i sits at position n − t + i and sees keys up to there. With no history the plain causal mask says the same.
    mask = None if n == t else torch.ones(t, n, dtype=torch.bool, device=q.device).tril(n - t)
    out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, is_causal=n == t)
    return out.permute(2, 0, 1, 3).reshape(t, num_heads, dim)
