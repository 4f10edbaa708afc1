"""The plain backend: torch's scaled_dot_product_attention over the pages, row by row, on any device.

A row whose pages happen to follow one another is read in place; otherwise its pages are gathered first. Only positions
below the row's length are ever touched, so what a free or half-filled page holds cannot matter.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from qwen3lab.attention.base import Batch, LayerCache


class TorchAttention:
    """attn_backend="torch"."""

    name = "torch"
    provider = "torch.nn.functional.scaled_dot_product_attention"

    def store(self, k: torch.Tensor, v: torch.Tensor, cache: LayerCache, batch: Batch) -> None:
        slots = batch.slot_mapping
        cache.k.view(-1, *k.shape[1:])[slots] = k
        cache.v.view(-1, *v.shape[1:])[slots] = v

    def attend(self, q: torch.Tensor, cache: LayerCache, batch: Batch) -> torch.Tensor:
        out = torch.empty_like(q)
        start = 0
        for b in range(batch.num_rows):
            stop = start + batch.query_lens_host[b]
            k, v = (_history(pages, b, batch) for pages in cache)
            out[start:stop] = attend_row(q[start:stop], k, v)
            start = stop
        return out


def _history(pages: torch.Tensor, b: int, batch: Batch) -> torch.Tensor:
    """Row b's keys or values so far, [n, Hkv, D]: a view where its pages are consecutive, else a gathered copy."""
    table, length = batch.pages_host[b], batch.seq_lens_host[b]
    first = table[0]
    if table == tuple(range(first, first + len(table))):
        mine = pages[first : first + len(table)]
    else:
        mine = pages.index_select(0, batch.block_table[b, : len(table)])
    return mine.flatten(0, 1)[:length]


def attend_row(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One sequence: q [t, Hq, D] are the last t of the n positions that k, v [n, Hkv, D] hold -> [t, Hq, D].

    The query heads of a KV head are folded beside it, so keys and values are read once for the whole group.
    """
    t, num_heads, dim = q.shape
    n, num_kv_heads, _ = k.shape
    group = num_heads // num_kv_heads
    if t == 1:  # decode: the group's heads are the query rows; there is nothing to mask
        grouped = q.view(1, num_kv_heads, group, dim)
        out = F.scaled_dot_product_attention(grouped, k.transpose(0, 1)[None], v.transpose(0, 1)[None])
        return out.reshape(1, num_heads, dim)
    grouped = q.view(t, num_kv_heads, group, dim).permute(1, 2, 0, 3)  # [Hkv, group, t, D]
    keys = k.transpose(0, 1)[:, None].expand(-1, group, -1, -1)
    values = v.transpose(0, 1)[:, None].expand(-1, group, -1, -1)
    # Query i sits at position n − t + i and sees keys up to there. With no history the plain causal mask says the same.
    mask = None if n == t else torch.ones(t, n, dtype=torch.bool, device=q.device).tril(n - t)
    out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, is_causal=n == t)
    return out.permute(2, 0, 1, 3).reshape(t, num_heads, dim)
