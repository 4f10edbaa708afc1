"""argmax: the greedy choice. logits [B, V], row stride of its own, last 1, bfloat16, float16 or float32 -> int64 [B].

The lowest id among equals; NOT_FINITE (−1) for a row that holds a NaN or +inf, wherever it is. A −inf is a token ruled
out, not an error; a row of nothing else gives id 0. Two kernels: the vocabulary is cut into blocks so that one row
alone fills the card, then each row's winner is taken among its blocks'.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qwen3lab_kernels.cost import Cost

OP = "argmax"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
NOT_FINITE = -1
FINISH_BLOCK = 1024
NO_ID = tl.constexpr(2147483647)  # loses every tie


def reference(logits: torch.Tensor) -> torch.Tensor:
    """The specification, int64 [B]."""
    ids = (logits == logits.amax(-1, keepdim=True)).int().argmax(-1)  # argmax over 0 and 1: the first of equals
    return torch.where((logits < float("inf")).all(-1), ids, NOT_FINITE)  # a NaN compares false


@triton.jit
def _best_of_block(p_logits, p_values, p_ids, V, num_blocks, row_stride, BLOCK: tl.constexpr):
    """One block's best value and id; a block that holds a NaN or +inf says +inf and −1, and so wins."""
    i_row = tl.program_id(0).to(tl.int64)
    i_block = tl.program_id(1)
    o = i_block * BLOCK + tl.arange(0, BLOCK)
    m = o < V
    x = tl.load(p_logits + i_row * row_stride + o, mask=m, other=-float("inf")).to(tl.float32)
    odd = tl.max(tl.where(x < float("inf"), 0, 1), 0) > 0
    best = tl.max(x, 0)
    id = tl.min(tl.where(m & (x == best), o, NO_ID), 0)
    tl.store(p_values + i_row * num_blocks + i_block, tl.where(odd, float("inf"), best))
    tl.store(p_ids + i_row * num_blocks + i_block, tl.where(odd, -1, id))


@triton.jit
def _best_of_row(p_values, p_ids, p_out, num_blocks, BLOCK: tl.constexpr):
    """The largest value, the lowest of its ids."""
    i_row = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], -float("inf"), tl.float32)
    ids = tl.full([BLOCK], NO_ID, tl.int32)
    for start in range(0, num_blocks, BLOCK):
        m = start + o < num_blocks
        value = tl.load(p_values + i_row * num_blocks + start + o, mask=m, other=-float("inf"))
        id = tl.load(p_ids + i_row * num_blocks + start + o, mask=m, other=NO_ID)
        ahead = (value > best) | ((value == best) & (id < ids))
        best = tl.where(ahead, value, best)
        ids = tl.where(ahead, id, ids)
    tl.store(p_out + i_row, tl.min(tl.where(best == tl.max(best, 0), ids, NO_ID), 0).to(tl.int64))


def argmax(
    logits: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    workspace: tuple[torch.Tensor, torch.Tensor] | None = None,
    block: int | None = None,
) -> torch.Tensor:
    """Launch two kernels. `workspace`: (fp32, int32), each of B · ceil(V / block) values and more, contiguous."""
    if logits.ndim != 2 or logits.shape[1] == 0 or logits.stride(1) != 1:
        raise ValueError(
            f"{OP}: logits are {tuple(logits.shape)} with strides {logits.stride()}; wanted [B, V], V ≥ 1, last "
            "stride 1"
        )
    if logits.dtype not in DTYPES:
        raise ValueError(f"{OP}: logits are {logits.dtype}, supported bfloat16, float16, float32; cast them")
    rows, vocab = logits.shape
    block = block or choose_block(rows)
    if block & (block - 1):
        raise ValueError(f"{OP}: block={block}, wanted a power of two; leave it out")
    num_blocks = triton.cdiv(vocab, block)
    out = torch.empty(rows, dtype=torch.int64, device=logits.device) if out is None else out
    if out.shape != (rows,) or out.dtype != torch.int64 or out.device != logits.device or not out.is_contiguous():
        raise ValueError(
            f"{OP}: out is {tuple(out.shape)} {out.dtype} on {out.device}; wanted int64 [{rows}] on {logits.device}, "
            "contiguous"
        )
    needed = rows * num_blocks
    if workspace is None:
        workspace = (
            torch.empty(needed, dtype=torch.float32, device=logits.device),
            torch.empty(needed, dtype=torch.int32, device=logits.device),
        )
    for part, dtype in zip(workspace, (torch.float32, torch.int32), strict=True):
        if part.dtype != dtype or part.numel() < needed or part.device != logits.device or not part.is_contiguous():
            raise ValueError(
                f"{OP}: workspace holds {part.numel()} of {part.dtype} on {part.device}; wanted at least {needed} of "
                f"{dtype} on {logits.device}, contiguous"
            )
    if rows == 0:
        return out
    values, ids = workspace
    _best_of_block[(rows, num_blocks)](
        logits, values, ids, vocab, num_blocks, logits.stride(0), BLOCK=block, num_warps=4 if block <= 1024 else 8
    )
    finish = min(FINISH_BLOCK, triton.next_power_of_2(num_blocks))
    _best_of_row[(rows,)](values, ids, out, num_blocks, BLOCK=finish, num_warps=4 if finish > 64 else 1)
    return out


def choose_block(rows: int) -> int:
    """Ids a program takes. Qwen3's 151,936 make 149 programs a row at 1024: one wave of a card of 132 processors."""
    return 1024 if rows <= 8 else 4096


def cost(rows: int, vocab: int, itemsize: int = 2) -> Cost:
    """The logits once in, an id a row out; what passes between the two kernels stays in cache and is not counted."""
    return Cost(itemsize * rows * vocab, 8 * rows, rows * vocab)
