"""A plan becomes tensors: all of a step's metadata in one packed int32 buffer, copied to the device once."""

from __future__ import annotations

import numpy as np
import torch

from qwen3lab.attention.base import Batch
from qwen3lab.engine.blocks import PADDING_PAGE
from qwen3lab.engine.scheduler import StepPlan


def build(plan: StepPlan, page_size: int, device: torch.device) -> Batch:
    """The tensors of `plan`: one host buffer, one copy."""
    rows = plan.rows
    query_lens = np.array([row.num_new for row in rows], dtype=np.int32)
    seq_lens = np.array([row.seq_len for row in rows], dtype=np.int32)
    pages = tuple(tuple(row.request.pages[: -(-row.seq_len // page_size)]) for row in rows)
    tokens, batch, width = int(query_lens.sum()), len(rows), max(map(len, pages))

    sizes = [tokens, tokens, tokens, batch + 1, batch, batch, batch * width]
    buffer = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=device.type == "cuda")
    fields = np.split(buffer.numpy(), np.cumsum(sizes)[:-1])
    token_ids, positions, slot_mapping, cu_seqlens_q, lens, logits_rows, table = fields

    table = table.reshape(batch, width)
    table.fill(PADDING_PAGE)
    cu_seqlens_q[0] = 0
    np.cumsum(query_lens, out=cu_seqlens_q[1:])
    lens[:] = seq_lens
    logits_rows[:] = cu_seqlens_q[1:] - 1
    for b, row in enumerate(rows):
        here = slice(cu_seqlens_q[b], cu_seqlens_q[b + 1])
        token_ids[here] = row.request.slice_ids(row.start, row.seq_len)
        position = np.arange(row.start, row.seq_len, dtype=np.int32)
        positions[here] = position
        table[b, : len(pages[b])] = pages[b]
        slot_mapping[here] = table[b, position // page_size] * page_size + position % page_size

    on_device = buffer.to(device, non_blocking=True)
    parts = on_device.split(sizes)
    return Batch(
        plan.kind,
        *parts[:6],
        block_table=parts[6].view(batch, width),
        query_lens_host=tuple(query_lens.tolist()),
        seq_lens_host=tuple(seq_lens.tolist()),
        pages_host=pages,
    )
