"""lm_head_argmax: the last RMSNorm, the head, and the greedy choice; no logits are written.

x [R, K], norm [K], weight [V, K] -> int64 [R]; 1 to 16 rows of one dtype of bfloat16, float16, float32. The choice is
that of logits rounded to x's dtype, the lowest id among equals, so it is what argmax over written logits gives; a row
with a logit that is not finite gives NOT_FINITE.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qwen3lab_kernels import norm_linear
from qwen3lab_kernels.cost import Cost
from qwen3lab_kernels.decode_product import (
    Tile,
    check,
    choose_tile,
    launch_options,
    product_cost,
    row_block,
    tile_product,
)  # fmt: skip
from qwen3lab_kernels.dependent import gdc_launch_dependents, gdc_wait

NOT_FINITE = -1
FINISH_BLOCK = 1024


def reference(x: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The specification, int64 [R]."""
    logits = norm_linear.reference(x, norm, weight, eps).to(x.dtype)
    ids = (logits == logits.amax(-1, keepdim=True)).int().argmax(-1)  # argmax over 0 and 1: the first of equals
    return torch.where(logits.isfinite().all(-1), ids, NOT_FINITE)


@triton.jit
def _best_of_tile(
    p_x, p_norm, p_w, p_values, p_ids, rows, V, num_tiles, x_stride, eps,
    K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, R: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One tile's best value and id a row; a tile that holds what is not finite says +inf and −1, and so wins."""
    i_tile = tl.program_id(0)
    o_n = i_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    m_n = o_n < V
    y = tile_product(p_x, p_norm, p_w, o_n, m_n, rows, x_stride, eps, K, BLOCK_K, R, True, DEPENDENT)
    y = y.to(p_x.dtype.element_ty).to(tl.float32)
    odd = tl.max(tl.where(m_n[None, :] & ~(tl.abs(y) < float("inf")), 1, 0), 1) > 0  # NaN compares false
    y = tl.where(m_n[None, :], y, -float("inf"))
    best = tl.max(y, 1)
    ids = tl.min(tl.where(y == best[:, None], o_n[None, :], 2147483647), 1)
    o_r = tl.arange(0, R)
    p_best = o_r * num_tiles + i_tile
    tl.store(p_values + p_best, tl.where(odd, float("inf"), best), mask=o_r < rows)
    tl.store(p_ids + p_best, tl.where(odd, -1, ids), mask=o_r < rows)


@triton.jit
def _best_of_all(p_values, p_ids, p_out, num_tiles, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    """Row by row: the largest value, the lowest of its ids."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    i_row = tl.program_id(0)
    o = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], -float("inf"), tl.float32)
    ids = tl.full([BLOCK], 2147483647, tl.int32)
    for start in range(0, num_tiles, BLOCK):
        m = start + o < num_tiles
        value = tl.load(p_values + i_row * num_tiles + start + o, mask=m, other=-float("inf"))
        id = tl.load(p_ids + i_row * num_tiles + start + o, mask=m, other=2147483647)
        ahead = (value > best) | ((value == best) & (id < ids))
        best = tl.where(ahead, value, best)
        ids = tl.where(ahead, id, ids)
    winner = tl.min(tl.where(best == tl.max(best, 0), ids, 2147483647), 0)
    tl.store(p_out + i_row, winner.to(tl.int64))


def lm_head_argmax(
    x: torch.Tensor,
    norm: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    out: torch.Tensor | None = None,
    workspace: tuple[torch.Tensor, torch.Tensor] | None = None,
    dependent: bool = False,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Launch two kernels. `workspace`: (fp32, int32), each of R · ceil(V / tile.n) values and more."""
    rows, vocab, k = check("lm_head_argmax", x, weight, norm)
    tile = tile or choose_tile(rows, vocab, k)
    num_tiles = triton.cdiv(vocab, tile.n)
    if workspace is None:
        workspace = (
            torch.empty(rows * num_tiles, dtype=torch.float32, device=x.device),
            torch.empty(rows * num_tiles, dtype=torch.int32, device=x.device),
        )
    values, ids = workspace
    if values.dtype != torch.float32 or ids.dtype != torch.int32 or min(values.numel(), ids.numel()) < rows * num_tiles:
        raise ValueError(
            f"lm_head_argmax: workspace {values.dtype} × {values.numel()}, {ids.dtype} × {ids.numel()}; wanted float32 "
            f"and int32 of at least {rows * num_tiles} values each"
        )
    out = torch.empty(rows, dtype=torch.int64, device=x.device) if out is None else out
    if out.shape != (rows,) or out.dtype != torch.int64 or not out.is_contiguous():
        raise ValueError(f"lm_head_argmax: out is {tuple(out.shape)} {out.dtype}, wanted [{rows}] int64, contiguous")
    _best_of_tile[(num_tiles,)](
        x, norm, weight, values, ids, rows, vocab, num_tiles, x.stride(0), eps,
        K=k, BLOCK_N=tile.n, BLOCK_K=tile.k, R=row_block(rows), DEPENDENT=dependent, **launch_options(tile, dependent),
    )  # fmt: skip
    _best_of_all[(rows,)](
        values, ids, out, num_tiles, BLOCK=FINISH_BLOCK, DEPENDENT=dependent,
        **launch_options(Tile(n=1, k=1, warps=8), dependent),
    )  # fmt: skip
    return out


def cost(rows: int, vocab: int, k: int, itemsize: int = 2) -> Cost:
    """Bytes and FLOPs of one call; what passes between the two kernels stays in cache and is not counted."""
    return product_cost(rows, vocab, k, itemsize, out_columns=0, norm=True) + Cost(0, 8 * rows, 0)
