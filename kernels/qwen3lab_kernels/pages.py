"""What the kernels over pages take: one gate and one set of checks for all of them."""

from __future__ import annotations

import torch

from qwen3lab_kernels.decode_product import DTYPES

HEAD_DIMS = (64, 128)
PAGE_SIZES = (16, 32, 64, 128, 256)


def gate(head_dim: int, page_size: int, dtype: torch.dtype) -> str | None:
    """Why the kernels over pages do not take this, or None."""
    if head_dim not in HEAD_DIMS:
        return f"head_dim={head_dim}, supported {HEAD_DIMS}; use attn_backend='torch'"
    if page_size not in PAGE_SIZES:
        return f"page_size={page_size}, supported {PAGE_SIZES}; set block_size to one of these"
    if dtype not in DTYPES:
        return f"dtype {dtype}, supported bfloat16, float16, float32"
    return None


def check_pages(
    op: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_table: torch.Tensor, seq_lens: torch.Tensor
) -> None:
    """ValueError naming what of q [.., Hq, D], k and v [P, S, Hkv, D], the table and the lengths does not fit."""
    d, hq = q.shape[-1], q.shape[-2]
    if k.ndim != 4 or k.shape != v.shape or k.shape[3] != d:
        raise ValueError(f"{op}: k {tuple(k.shape)}, v {tuple(v.shape)}; wanted both [P, S, Hkv, {d}]")
    if reason := gate(d, k.shape[1], q.dtype):
        raise ValueError(f"{op}: {reason}")
    if hq % k.shape[2]:
        raise ValueError(f"{op}: {hq} query heads over {k.shape[2]} KV heads; the first must be a multiple")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"{op}: q {q.dtype}, k {k.dtype}, v {v.dtype}; wanted one of bfloat16, float16, float32")
    if block_table.ndim != 2 or seq_lens.shape != block_table.shape[:1]:
        raise ValueError(
            f"{op}: block_table {tuple(block_table.shape)}, seq_lens {tuple(seq_lens.shape)}; wanted [B, N] and [B]"
        )
    named = {"q": q, "k": k, "v": v, "block_table": block_table, "seq_lens": seq_lens}
    for name, tensor in named.items():
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            raise ValueError(f"{op}: {name} has strides {tensor.stride()}; its last must be 1")
        if tensor.device != q.device:
            raise ValueError(f"{op}: q on {q.device}, {name} on {tensor.device}; they must share a device")
    for name in ("block_table", "seq_lens"):
        if named[name].dtype != torch.int32:
            raise ValueError(f"{op}: {name} is {named[name].dtype}; it must be int32")


def check_out(op: str, out: torch.Tensor, q: torch.Tensor) -> None:
    """An output given by the caller: q's shape, dtype and device, last stride 1."""
    if out.shape != q.shape or out.dtype != q.dtype or out.device != q.device or out.stride(-1) != 1:
        raise ValueError(
            f"{op}: out is {tuple(out.shape)} {out.dtype} on {out.device} with strides {out.stride()}; wanted "
            f"{tuple(q.shape)} {q.dtype} on {q.device}, last stride 1"
        )
