"""linear_residual: residual += x·Wᵀ, in place. x [R, K], weight [N, K], residual [R, N]; 1 to 16 rows.

All share a dtype of bfloat16, float16, float32; sums are fp32, and the sum with the residual is rounded once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

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


def reference(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """The specification, [R, N] in fp32 (fp64 if x is); `residual` is left as it is."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return residual + x @ weight.to(x.dtype).t()


@triton.jit
def _linear_residual(
    p_x, p_w, p_residual, rows, N, x_stride, residual_stride,
    K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, R: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_n = o_n < N
    y = tile_product(p_x, p_x, p_w, o_n, m_n, rows, x_stride, 0.0, K, BLOCK_K, R, False, DEPENDENT)
    o_r = tl.arange(0, R)
    p_y = p_residual + o_r.to(tl.int64)[:, None] * residual_stride + o_n[None, :]
    mask = (o_r < rows)[:, None] & m_n[None, :]
    y += tl.load(p_y, mask=mask, other=0.0).to(tl.float32)
    tl.store(p_y, y.to(p_residual.dtype.element_ty), mask=mask)


def linear_residual(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    *,
    dependent: bool = False,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Launch, and return `residual`. `dependent`: see norm_linear; weights alone are read early."""
    rows, n, k = check("linear_residual", x, weight)
    check_out("linear_residual", "residual", residual, (rows, n), x)
    tile = tile or choose_tile(rows, n, k)
    _linear_residual[(triton.cdiv(n, tile.n),)](
        x, weight, residual, rows, n, x.stride(0), residual.stride(0),
        K=k, BLOCK_N=tile.n, BLOCK_K=tile.k, R=row_block(rows), DEPENDENT=dependent, **launch_options(tile, dependent),
    )  # fmt: skip
    return residual


def cost(rows: int, n: int, k: int, itemsize: int = 2) -> Cost:
    """Bytes and FLOPs of one call; the residual is read as well as written."""
    return product_cost(rows, n, k, itemsize) + Cost(itemsize * rows * n, 0, rows * n)
