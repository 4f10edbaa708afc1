"""A plan becomes tensors: all of a step's metadata in one packed int32 buffer, copied to the device once.

Each part begins at 16 bytes, and a block table's rows are a multiple of 16 wide: Triton compiles a kernel anew for
every alignment that it meets, and a step's lengths must not be one.
"""

from __future__ import annotations

import numpy as np
import torch

from qwen3lab.attention.base import Batch
from qwen3lab.engine.blocks import PADDING_PAGE
from qwen3lab.engine.scheduler import StepPlan

ALIGNED = 4  # int32 in 16 bytes
TABLE_ALIGNED = 16


def build(plan: StepPlan, page_size: int, device: torch.device) -> Batch:
    """The tensors of `plan`: one host buffer, one copy."""
    rows = plan.rows
    query_lens = tuple(row.num_new for row in rows)
    lens = tuple(row.seq_len for row in rows)
    pages = tuple(tuple(row.request.pages[: -(-row.seq_len // page_size)]) for row in rows)
    tokens, batch, width = sum(query_lens), len(rows), _up(max(map(len, pages)), TABLE_ALIGNED)

    sizes = (tokens, tokens, tokens, batch + 1, batch, batch, batch * width)
    rooms = [_up(size, ALIGNED) for size in sizes]
    buffer = torch.empty(sum(rooms), dtype=torch.int32, pin_memory=device.type == "cuda")
    ids, places, slots, cumulative, seq_lens, last, table = (
        part[:size] for part, size in zip(np.split(buffer.numpy(), np.cumsum(rooms)[:-1]), sizes, strict=True)
    )

    cumulative[0] = 0
    np.cumsum(query_lens, out=cumulative[1:])
    seq_lens[:] = lens
    last[:] = cumulative[1:] - 1
    table = table.reshape(batch, width)
    table.fill(PADDING_PAGE)
    for b, mine in enumerate(pages):
        table[b, : len(mine)] = mine
    ids[:] = [token for row in rows for token in row.request.slice_ids(row.start, row.seq_len)]
    of_row = np.repeat(np.arange(batch), query_lens)
    # A row's tokens are its last: each sits as far before its sequence's end as it stands here before its row's end.
    places[:] = np.arange(tokens) - (cumulative[1:] - seq_lens)[of_row]
    slots[:] = table[of_row, places // page_size] * page_size + places % page_size
    hidden = places < np.array([row.write_from for row in rows])[of_row]
    slots[hidden] = PADDING_PAGE * page_size

    there = buffer.to(device, non_blocking=True).split(rooms)
    parts = [part[:size] for part, size in zip(there, sizes, strict=True)]
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


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
