"""The product that every decode linear is made of: 1 to 16 rows of x with a tile of W's rows, W read once.

At so few rows the time is that of reading W, so a tile asks for its weights before anything else: under programmatic
dependent launch they are on their way while the predecessor, whose result x is, still runs.

`tile_product` is the device function; `norm_linear`, `linear_residual`, `norm_gate_up_silu` and `lm_head_argmax` are
the operations. Letters: R rows (1 to 16), K input size, N output size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from qwen3lab_kernels.cost import Cost
from qwen3lab_kernels.dependent import dependent_options, gdc_launch_dependents, gdc_wait, line_starts, prefetch

MAX_ROWS = 16
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Tile:
    """How a product is cut: rows of W a program takes, values of K at a time, warps, stages of the pipeline."""

    n: int
    k: int
    warps: int
    stages: int = 1


def choose_tile(rows: int, n: int, k: int) -> Tile:
    """The cut for a product; a pure function of its size, so that a captured launch and an eager one are the same.

    One row: few rows of W a program and all of K in flight at once, or in pieces that registers hold. More rows: the
    tensor cores want 16 columns and a loop, whose stages keep the reads in flight.
    """
    if rows == 1:
        piece = min(triton.next_power_of_2(k), 2048)
        return Tile(n=4 if n <= 8192 else 8, k=piece, warps=4 if piece > 1024 else 2)
    return Tile(n=16 if n <= 8192 else 64, k=min(256, triton.next_power_of_2(k)), warps=4, stages=4)


@triton.jit
def _piece(p_rows, m_n, k, K: tl.constexpr, EVEN: tl.constexpr):
    """[N, len(k)]: columns k of W's rows; EVEN: no k lies past K, and none is masked."""
    mask = m_n[:, None] if EVEN else m_n[:, None] & (k < K)[None, :]
    return tl.load(p_rows + k[None, :], mask=mask, other=0.0)


@triton.jit
def tile_product(
    p_x, p_norm, p_w, o_n, m_n, rows, x_stride, eps,
    K: tl.constexpr, BLOCK_K: tl.constexpr, R: tl.constexpr, NORM: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """[R, len(o_n)] fp32: x·Wᵀ for W's rows o_n; with NORM, of x / √(mean(x²) + eps) · norm.

    The scale of the norm is one number a row, so it is applied to the sums, and x is read once.
    """
    o_k = tl.arange(0, BLOCK_K)
    o_r = tl.arange(0, R)
    EVEN: tl.constexpr = K % BLOCK_K == 0
    p_rows = p_w + o_n.to(tl.int64)[:, None] * K
    # One row: the first piece of W waits in registers. More: the loop's pipeline must own every load, so W waits in L2.
    AHEAD: tl.constexpr = BLOCK_K if R == 1 else 0
    if R == 1:
        w = _piece(p_rows, m_n, o_k, K, EVEN)
    if DEPENDENT:
        gdc_launch_dependents()
        o_line = line_starts(p_w, BLOCK_K)
        p_lines = p_w + tl.where(m_n, o_n, 0).to(tl.int64)[:, None] * K
        for start in range(AHEAD, K, BLOCK_K):
            prefetch(p_lines + tl.minimum(start + o_line, K - 1)[None, :])
        gdc_wait()
    acc = tl.zeros([R, o_n.shape[0]], tl.float32)
    squares = tl.zeros([R], tl.float32)
    for start in tl.range(0, K, BLOCK_K):
        k = start + o_k
        m_k = (k < K) | EVEN
        if R > 1 or start > 0:
            w = _piece(p_rows, m_n, k, K, EVEN)
        p_tile = p_x + o_r.to(tl.int64)[:, None] * x_stride + k[None, :]
        x = tl.load(p_tile, mask=(o_r < rows)[:, None] & m_k[None, :], other=0.0).to(tl.float32)
        if NORM:
            squares += tl.sum(x * x, 1)
            x *= tl.load(p_norm + k, mask=m_k, other=0.0).to(tl.float32)[None, :]
        if R == 1:
            acc += tl.sum(w.to(tl.float32) * x, 1)[None, :]
        else:
            acc = tl.dot(x.to(w.dtype), tl.trans(w), acc, input_precision="ieee")
    if NORM:
        acc *= tl.rsqrt(squares / K + eps)[:, None]
    return acc


def check(op: str, x: torch.Tensor, weight: torch.Tensor, norm: torch.Tensor | None = None) -> tuple[int, int, int]:
    """(R, N, K) of x [R, K] and weight [N, K], norm [K]; ValueError naming what does not fit."""
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"{op}: x {tuple(x.shape)}, weight {tuple(weight.shape)}; wanted [R, K] and [N, K]")
    if not 1 <= x.shape[0] <= MAX_ROWS:
        raise ValueError(f"{op}: {x.shape[0]} rows, supported 1 to {MAX_ROWS}; use torch.nn.functional.linear")
    if weight.dtype not in DTYPES or x.dtype != weight.dtype:
        raise ValueError(f"{op}: x {x.dtype}, weight {weight.dtype}; wanted one dtype of bfloat16, float16, float32")
    if x.stride(1) != 1:
        raise ValueError(f"{op}: x has strides {x.stride()}; its last must be 1")
    if not weight.is_contiguous():
        raise ValueError(f"{op}: weight has strides {weight.stride()}; it must be contiguous")
    if norm is not None and (norm.shape != x.shape[1:] or not norm.is_contiguous()):
        raise ValueError(f"{op}: norm {tuple(norm.shape)}, wanted [{x.shape[1]}], contiguous")
    for name, tensor in (("weight", weight), ("norm", norm)):
        if tensor is not None and tensor.device != x.device:
            raise ValueError(f"{op}: x on {x.device}, {name} on {tensor.device}; they must share a device")
    return x.shape[0], weight.shape[0], x.shape[1]


def check_out(op: str, name: str, out: torch.Tensor, shape: tuple[int, int], like: torch.Tensor) -> None:
    """An output given by the caller: [R, N], of x's dtype and device, last stride 1."""
    if out.shape != shape or out.dtype != like.dtype or out.device != like.device or out.stride(1) != 1:
        raise ValueError(
            f"{op}: {name} is {tuple(out.shape)} {out.dtype} on {out.device} with strides {out.stride()}; wanted "
            f"{shape} {like.dtype} on {like.device}, last stride 1"
        )


def launch_options(tile: Tile, dependent: bool) -> dict[str, int | bool]:
    """What a launch takes beside its arguments."""
    return {"num_warps": tile.warps, "num_stages": tile.stages} | dependent_options(dependent)


def row_block(rows: int) -> int:
    """One row is summed by plain arithmetic; more share the tensor cores' smallest tile."""
    return 1 if rows == 1 else MAX_ROWS


def product_cost(
    rows: int, n: int, k: int, itemsize: int, *, out_columns: int | None = None, norm: bool = False
) -> Cost:
    """W, x and the norm's weight once; one result of `out_columns` (default n) values a row."""
    read = itemsize * (n * k + rows * k + (k if norm else 0))
    return Cost(read, itemsize * rows * (n if out_columns is None else out_columns), 2 * rows * n * k)
