"""Sequences in shuffled pages with poison everywhere else, and what an attention over them is held against."""

from __future__ import annotations

from itertools import pairwise

import torch

NAN = float("nan")


def cached(device, dtype, lens, page_size, hkv, d, *, beside=0):
    """k, v, block_table: sequences of these lengths in shuffled pages, strided by `beside` more heads; NaN elsewhere.

    The free pages, the tail of every last page and the heads beside are NaN; a table's unused entries point far out.
    """
    counts = [-(-n // page_size) for n in lens]
    order = (torch.randperm(sum(counts) + 2)[2:] if sum(counts) else torch.arange(0)).split(counts)
    k, v = (
        torch.full((sum(counts) + 2, page_size, hkv + beside, d), NAN, device=device, dtype=dtype)[:, :, :hkv]
        for _ in "kv"
    )
    table = torch.full((len(lens), max(counts) + 1), 2**31 - 1, dtype=torch.int32, device=device)
    for b, (n, pages) in enumerate(zip(lens, order, strict=True)):
        table[b, : len(pages)] = pages
        at = torch.arange(n)
        for x in (k, v):
            x[pages[at // page_size], at % page_size] = torch.randn(n, hkv, d).to(device, dtype)
    return k, v, table


def eager(q, k, v, bounds, lens, table):
    """torch's own chain in q's dtype, [T, Hq, D]: what a kernel may not be further from fp64 than."""
    (_, hq, d), (_, page_size, hkv, _) = q.shape, k.shape
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    for b, (n, (first, last)) in enumerate(zip(lens, pairwise(bounds), strict=True)):
        if n == 0:
            continue
        pages = table[b, : -(-n // page_size)].long()
        keys, values = (x[pages].flatten(0, 1)[:n].repeat_interleave(hq // hkv, 1).transpose(0, 1) for x in (k, v))
        scores = q[first:last].transpose(0, 1) @ keys.mT * d**-0.5
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).triu(n - (last - first) + 1)
        seen = scores.masked_fill(hidden, -float("inf")).softmax(-1).nan_to_num() @ values
        out[first:last] = seen.transpose(0, 1)
    return out
