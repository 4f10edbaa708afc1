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
    query_lens = tuple(row.num_new for row in rows)
    lens = tuple(row.seq_len for row in rows)
    pages = tuple(tuple(row.request.pages[: -(-row.seq_len // page_size)]) for row in rows)
    tokens, batch, width = sum(query_lens), len(rows), max(map(len, pages))

    sizes = [tokens, tokens, tokens, batch + 1, batch, batch, batch * width]
    buffer = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=device.type == "cuda")
    ids, places, slots, cumulative, seq_lens, last, table = np.split(buffer.numpy(), np.cumsum(sizes)[:-1])

    table = table.reshape(batch, width)
    table.fill(PADDING_PAGE)
    cumulative[0] = 0
    np.cumsum(query_lens, out=cumulative[1:])
    seq_lens[:] = lens
    last[:] = cumulative[1:] - 1
    for b, row in enumerate(rows):
        here = slice(cumulative[b], cumulative[b + 1])
        ids[here] = row.request.slice_ids(row.start, row.seq_len)
        position = np.arange(row.start, row.seq_len, dtype=np.int32)
        places[here] = position
        table[b, : len(pages[b])] = pages[b]
        slots[here] = table[b, position // page_size] * page_size + position % page_size
        slots[here][position < row.write_from] = PADDING_PAGE * page_size

    parts: tuple[torch.Tensor, ...] = buffer.to(device, non_blocking=True).split(sizes)
    return Batch(
        kind=plan.kind,
        token_ids=parts[0],
        positions=parts[1],
        slot_mapping=parts[2],
        cu_seqlens_q=parts[3],
        seq_lens=parts[4],
        logits_rows=parts[5],
        block_table=parts[6].view(batch, width),
        query_lens_host=query_lens,
        seq_lens_host=lens,
        pages_host=pages,
    )
