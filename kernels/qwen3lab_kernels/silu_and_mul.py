"""silu_and_mul: silu(gate) · up, where x [T, 2·I] holds the gate's columns and, after them, the up's -> [T, I].

x and the result have row strides of their own, last 1; one dtype of bfloat16, float16, float32. Everything up to the
result is fp32, rounded once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qwen3lab_kernels.cost import Cost

OP = "silu_and_mul"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
BLOCK = 1024  # with 4 warps, one access of 16 bytes (at bfloat16) a thread and operand
WARPS = 4


def reference(x: torch.Tensor) -> torch.Tensor:
    """The specification, fp32 [T, I]."""
    gate, up = x.float().chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


@triton.jit
def _silu_and_mul(p_x, p_out, size, x_stride, out_stride, BLOCK: tl.constexpr):
    i_t = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = o < size
    p_gate = p_x + i_t * x_stride + o
    gate = tl.load(p_gate, mask=m, other=0.0).to(tl.float32)
    up = tl.load(p_gate + size, mask=m, other=0.0).to(tl.float32)
    y = gate * tl.sigmoid(gate) * up
    tl.store(p_out + i_t * out_stride + o, y.to(p_out.dtype.element_ty), mask=m)


def silu_and_mul(x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Launch. `out` must not overlap x: other programs read x while this one writes."""
    if x.ndim != 2 or x.shape[1] % 2 or x.stride(1) != 1:
        raise ValueError(f"{OP}: x is {tuple(x.shape)} with strides {x.stride()}; wanted [T, 2·I], last stride 1")
    if x.dtype not in DTYPES:
        raise ValueError(f"{OP}: x is {x.dtype}, supported bfloat16, float16, float32; cast it")
    tokens, size = x.shape[0], x.shape[1] // 2
    out = torch.empty(tokens, size, dtype=x.dtype, device=x.device) if out is None else out
    if out.shape != (tokens, size) or out.dtype != x.dtype or out.device != x.device or out.stride(1) != 1:
        raise ValueError(
            f"{OP}: out is {tuple(out.shape)} {out.dtype} on {out.device} with strides {out.stride()}; wanted "
            f"{(tokens, size)} {x.dtype} on {x.device}, last stride 1"
        )
    if tokens and size:
        grid = (tokens, triton.cdiv(size, BLOCK))
        _silu_and_mul[grid](x, out, size, x.stride(0), out.stride(0), BLOCK=BLOCK, num_warps=WARPS)
    return out


def cost(tokens: int, size: int, itemsize: int = 2) -> Cost:
    """Both halves once in, the result once out; `size` is I, and a silu counts as 4 operations."""
    return Cost(itemsize * 2 * tokens * size, itemsize * tokens * size, 5 * tokens * size)
