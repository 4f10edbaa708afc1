"""norm_linear: RMSNorm and the projection after it. x [R, K], norm [K], weight [N, K] -> [R, N]; 1 to 16 rows.

x, norm and weight share a dtype of bfloat16, float16, float32; sums are fp32, rounded once.
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


def reference(x: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The specification, [R, N] in fp32 (fp64 if x is)."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * norm) @ weight.to(x.dtype).t()


@triton.jit
def _norm_linear(
    p_x, p_norm, p_w, p_out, rows, N, x_stride, out_stride, eps,
    K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, R: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_n = o_n < N
    y = tile_product(p_x, p_norm, p_w, o_n, m_n, rows, x_stride, eps, K, BLOCK_K, R, True, DEPENDENT)
    o_r = tl.arange(0, R)
    p_y = p_out + o_r.to(tl.int64)[:, None] * out_stride + o_n[None, :]
    tl.store(p_y, y.to(p_out.dtype.element_ty), mask=(o_r < rows)[:, None] & m_n[None, :])


def norm_linear(
    x: torch.Tensor,
    norm: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    out: torch.Tensor | None = None,
    dependent: bool = False,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Launch. `dependent`: start before the kernel that writes x has ended (see dependent.py).

    Everything but x must have been written before the chain began: weights and norm are read early.
    """
    rows, n, k = check("norm_linear", x, weight, norm)
    out = torch.empty(rows, n, dtype=x.dtype, device=x.device) if out is None else out
    check_out("norm_linear", "out", out, (rows, n), x)
    tile = tile or choose_tile(rows, n, k)
    _norm_linear[(triton.cdiv(n, tile.n),)](
        x, norm, weight, out, rows, n, x.stride(0), out.stride(0), eps,
        K=k, BLOCK_N=tile.n, BLOCK_K=tile.k, R=row_block(rows), DEPENDENT=dependent, **launch_options(tile, dependent),
    )  # fmt: skip
    return out


def cost(rows: int, n: int, k: int, itemsize: int = 2) -> Cost:
    """Bytes and FLOPs of one call."""
    return product_cost(rows, n, k, itemsize, norm=True)
