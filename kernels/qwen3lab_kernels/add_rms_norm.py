"""add_rms_norm: residual += x in place, then the RMSNorm of the sum, in one pass over both.

x, residual [T, H] with row strides of their own, last 1; weight [H], contiguous -> [T, H]; H up to 8192. One dtype of
bfloat16, float16, float32. The sum is rounded to that dtype before it is normed, as an engine that stores it would.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qwen3lab_kernels.cost import Cost

OP = "add_rms_norm"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MAX_SIZE = 8192  # a row lives in the registers of one program


def reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The specification: (normed, fp32 [T, H]; the new residual in its dtype). Nothing is written in place."""
    total = (residual.float() + x.float()).to(residual.dtype)
    wide = total.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float(), total


@triton.jit
def _add_rms_norm(
    p_x, p_residual, p_weight, p_out, x_stride, residual_stride, out_stride, eps, H: tl.constexpr, BLOCK: tl.constexpr
):
    i_t = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, BLOCK)
    m = o < H
    b_x = tl.load(p_x + i_t * x_stride + o, mask=m, other=0.0).to(tl.float32)
    b_sum = tl.load(p_residual + i_t * residual_stride + o, mask=m, other=0.0).to(tl.float32) + b_x
    b_weight = tl.load(p_weight + o, mask=m, other=0.0).to(tl.float32)
    rounded = b_sum.to(p_residual.dtype.element_ty)
    tl.store(p_residual + i_t * residual_stride + o, rounded, mask=m)
    b = rounded.to(tl.float32)
    b = b * tl.rsqrt(tl.sum(b * b, 0) / H + eps) * b_weight
    tl.store(p_out + i_t * out_stride + o, b.to(p_out.dtype.element_ty), mask=m)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Launch. `out` may be x itself: a program has read its whole row before it writes."""
    if x.ndim != 2 or x.stride(1) != 1:
        raise ValueError(f"{OP}: x is {tuple(x.shape)} with strides {x.stride()}; wanted [T, H], last stride 1")
    tokens, size = x.shape
    if not 1 <= size <= MAX_SIZE:
        raise ValueError(f"{OP}: H={size}, supported 1 to {MAX_SIZE}; add, then torch.nn.functional.rms_norm")
    if x.dtype not in DTYPES:
        raise ValueError(f"{OP}: x is {x.dtype}, supported bfloat16, float16, float32; cast it")
    out = torch.empty(tokens, size, dtype=x.dtype, device=x.device) if out is None else out
    for name, tensor in (("residual", residual), ("out", out)):
        if tensor.shape != x.shape or tensor.stride(1) != 1:
            raise ValueError(
                f"{OP}: {name} is {tuple(tensor.shape)} with strides {tensor.stride()}; wanted {tuple(x.shape)}, "
                "last stride 1"
            )
    if weight.shape != (size,) or not weight.is_contiguous():
        raise ValueError(f"{OP}: weight is {tuple(weight.shape)}, wanted [{size}], contiguous")
    for name, tensor in (("residual", residual), ("weight", weight), ("out", out)):
        if tensor.dtype != x.dtype or tensor.device != x.device:
            raise ValueError(f"{OP}: {name} is {tensor.dtype} on {tensor.device}; wanted {x.dtype} on {x.device}, as x")
    if tokens == 0:
        return out
    block = triton.next_power_of_2(size)
    _add_rms_norm[(tokens,)](
        x, residual, weight, out, x.stride(0), residual.stride(0), out.stride(0), eps,
        H=size, BLOCK=block, num_warps=row_warps(block),
    )  # fmt: skip
    return out


def row_warps(block: int) -> int:
    """Two accesses of 16 bytes (at bfloat16) a thread and operand, all of them in flight before the sum."""
    return max(1, min(16, block // 512))


def cost(tokens: int, size: int, itemsize: int = 2) -> Cost:
    """x, the residual and the weight once in; the residual and the result once out."""
    return Cost(itemsize * (2 * tokens * size + size), itemsize * 2 * tokens * size, 5 * tokens * size)
