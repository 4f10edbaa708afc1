"""norm_gate_up_silu: RMSNorm, both projections of the MLP, and silu(gate)·up.

x [R, K], norm [K], weight [2·I, K] (the gate's rows, then the up's) -> [R, I]; 1 to 16 rows. One dtype of bfloat16,
float16, float32; everything up to the result is fp32, rounded once.
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
    check_out,
    choose_tile,
    launch_options,
    product_cost,
    row_block,
    tile_product,
)  # fmt: skip


def reference(x: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The specification, [R, I] in fp32 (fp64 if x is)."""
    gate, up = norm_linear.reference(x, norm, weight, eps).chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


@triton.jit
def _norm_gate_up_silu(
    p_x, p_norm, p_w, p_out, rows, size, x_stride, out_stride, eps,
    K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, R: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    # One tile holds each gate row beside its up row, so x is read and normed once for both.
    o_i = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    o_pair = tl.arange(0, 2 * BLOCK_N)
    o_n = tl.program_id(0) * BLOCK_N + o_pair // 2 + (o_pair % 2) * size
    m_n = tl.program_id(0) * BLOCK_N + o_pair // 2 < size
    y = tile_product(p_x, p_norm, p_w, o_n, m_n, rows, x_stride, eps, K, BLOCK_K, R, True, DEPENDENT)
    gate, up = tl.split(tl.reshape(y, [R, BLOCK_N, 2]))
    y = gate * tl.sigmoid(gate) * up
    o_r = tl.arange(0, R)
    p_y = p_out + o_r.to(tl.int64)[:, None] * out_stride + o_i[None, :]
    tl.store(p_y, y.to(p_out.dtype.element_ty), mask=(o_r < rows)[:, None] & (o_i < size)[None, :])


def norm_gate_up_silu(
    x: torch.Tensor,
    norm: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    out: torch.Tensor | None = None,
    dependent: bool = False,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Launch. `dependent`: see norm_linear. `tile.n` counts results, each of which takes two rows of the weight."""
    rows, n, k = check("norm_gate_up_silu", x, weight, norm)
    if n % 2:
        raise ValueError(f"norm_gate_up_silu: weight has {n} rows, wanted an even number: the gate's, then the up's")
    size = n // 2
    out = torch.empty(rows, size, dtype=x.dtype, device=x.device) if out is None else out
    check_out("norm_gate_up_silu", "out", out, (rows, size), x)
    tile = tile or halved(choose_tile(rows, n, k))
    _norm_gate_up_silu[(triton.cdiv(size, tile.n),)](
        x, norm, weight, out, rows, size, x.stride(0), out.stride(0), eps,
        K=k, BLOCK_N=tile.n, BLOCK_K=tile.k, R=row_block(rows), DEPENDENT=dependent, **launch_options(tile, dependent),
    )  # fmt: skip
    return out


def halved(tile: Tile) -> Tile:
    """The same rows of the weight in a program, in pairs."""
    return Tile(max(1, tile.n // 2), tile.k, tile.warps, tile.stages)


def cost(rows: int, size: int, k: int, itemsize: int = 2) -> Cost:
    """Bytes and FLOPs of one call; `size` is I."""
    return product_cost(rows, 2 * size, k, itemsize, out_columns=size, norm=True)
