"""store_kv: a step's keys and values into their pages.

k, v [T, Hkv, D] with strides of their own, last 1; slot_mapping int32 [T], page · S + offset, −1 for a token to leave
out; k_cache, v_cache [P, S, Hkv, D] with strides of their own, last 1. One dtype of bfloat16, float16, float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qwen3lab_kernels.cost import Cost

OP = "store_kv"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
HEADS = 8  # heads a program takes: 2 KiB of keys and as much of values, at bfloat16 and head_dim 128


def reference(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """The specification. It waits for the device (it counts the tokens to keep), so it cannot be captured."""
    kept = (slot_mapping >= 0).nonzero().squeeze(1)
    slots = slot_mapping[kept].long()
    page, offset = slots // k_cache.shape[1], slots % k_cache.shape[1]
    k_cache[page, offset] = k[kept]
    v_cache[page, offset] = v[kept]


@triton.jit
def _store_kv(
    p_k, p_v, p_k_cache, p_v_cache, p_slots, heads,
    k_stride_t, k_stride_h, v_stride_t, v_stride_h,
    kc_stride_p, kc_stride_s, kc_stride_h, vc_stride_p, vc_stride_s, vc_stride_h,
    S: tl.constexpr, D: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    i_t = tl.program_id(0).to(tl.int64)
    o_h = (tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)).to(tl.int64)[:, None]
    o_d = tl.arange(0, BLOCK_D)[None, :]
    m = (o_h < heads) & (o_d < D)
    # All three loads are asked for at once: a token to leave out is rare, a wait for its slot would be everyone's.
    slot = tl.load(p_slots + i_t).to(tl.int64)
    b_k = tl.load(p_k + i_t * k_stride_t + o_h * k_stride_h + o_d, mask=m, other=0.0)
    b_v = tl.load(p_v + i_t * v_stride_t + o_h * v_stride_h + o_d, mask=m, other=0.0)
    page, offset = slot // S, slot % S
    m = (o_h < tl.where(slot >= 0, heads, 0)) & (o_d < D)  # a token to leave out has no heads
    tl.store(p_k_cache + page * kc_stride_p + offset * kc_stride_s + o_h * kc_stride_h + o_d, b_k, mask=m)
    tl.store(p_v_cache + page * vc_stride_p + offset * vc_stride_s + o_h * vc_stride_h + o_d, b_v, mask=m)


def store_kv(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Launch. Slots are trusted: −1, or below P · S, and none twice."""
    if k.ndim != 3 or v.shape != k.shape or k.stride(2) != 1 or v.stride(2) != 1:
        raise ValueError(
            f"{OP}: k {tuple(k.shape)} with strides {k.stride()}, v {tuple(v.shape)} with strides {v.stride()}; wanted "
            "[T, Hkv, D] both, last stride 1"
        )
    if k.dtype not in DTYPES or v.dtype != k.dtype or v.device != k.device:
        raise ValueError(
            f"{OP}: k {k.dtype} on {k.device}, v {v.dtype} on {v.device}; wanted one device and one dtype of bfloat16, "
            "float16, float32"
        )
    check_cache(OP, k, k.shape, k_cache, v_cache, slot_mapping)
    tokens, heads, dim = k.shape
    if tokens == 0:
        return
    block_h, block_d = min(HEADS, triton.next_power_of_2(heads)), triton.next_power_of_2(dim)
    _store_kv[(tokens, triton.cdiv(heads, block_h))](
        k, v, k_cache, v_cache, slot_mapping, heads,
        k.stride(0), k.stride(1), v.stride(0), v.stride(1), *k_cache.stride()[:3], *v_cache.stride()[:3],
        S=k_cache.shape[1], D=dim, BLOCK_H=block_h, BLOCK_D=block_d, num_warps=copy_warps(block_h * block_d),
    )  # fmt: skip


def check_cache(
    op: str,
    like: torch.Tensor,
    shape: tuple[int, ...],
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """ValueError unless k and v of `shape` (T, Hkv, D), dtype and device of `like`, can go to these slots."""
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.ndim != 4 or cache.shape[2:] != shape[1:] or cache.shape != k_cache.shape or cache.stride(3) != 1:
            raise ValueError(
                f"{op}: {name} is {tuple(cache.shape)} with strides {cache.stride()}; wanted [P, S, {shape[1]}, "
                f"{shape[2]}], last stride 1, both caches of one shape"
            )
        if cache.dtype != like.dtype or cache.device != like.device:
            raise ValueError(
                f"{op}: {name} is {cache.dtype} on {cache.device}; wanted {like.dtype} on {like.device}, as k; "
                "allocate the cache in the model's dtype"
            )
    if slot_mapping.shape != shape[:1] or slot_mapping.dtype != torch.int32 or not slot_mapping.is_contiguous():
        raise ValueError(
            f"{op}: slot_mapping is {tuple(slot_mapping.shape)} {slot_mapping.dtype} with strides "
            f"{slot_mapping.stride()}; wanted int32 [{shape[0]}], contiguous"
        )
    if slot_mapping.device != like.device:
        raise ValueError(f"{op}: slot_mapping on {slot_mapping.device}, k on {like.device}; they must share a device")


def copy_warps(values: int) -> int:
    """Enough threads that each moves 8 values, 16 bytes of bfloat16, at a time."""
    return max(1, min(8, values // 256))


def cost(tokens: int, num_kv_heads: int, head_dim: int, itemsize: int = 2) -> Cost:
    """k and v once in, once out; a slot a token."""
    moved = 2 * tokens * num_kv_heads * head_dim * itemsize
    return Cost(moved + 4 * tokens, moved, 0)
