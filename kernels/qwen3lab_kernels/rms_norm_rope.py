"""rms_norm_rope: per-head RMSNorm of q and k and their rotation, and, when asked, k and v into their pages: one launch.

qkv [T, (Hq + 2·Hkv)·D], a projection's result, row stride of its own, last 1; q_weight, k_weight [D]; one dtype of
bfloat16, float16, float32. positions int32 or int64 [T]; cos_sin fp32 [positions, D]: cosines in the first D/2 columns,
sines in the rest. Optionally k_cache, v_cache [P, S, Hkv, D], strides of their own, last 1, and slot_mapping int32 [T]
(page · S + offset, −1 writes nothing). -> q [T, Hq, D] and, without a cache, k [T, Hkv, D]; v is not touched.

fp32 throughout, rounded once. Pair i of a head (i and i + D/2) turns: (a, b) becomes (a·cos − b·sin, b·cos + a·sin).

Three doors: the torch.library ops `qwen3lab::rms_norm_rope` and `…_store` (CUDA: the kernel; CPU: plain torch; fake),
which trace and capture; `unfused`, for what `gate` turns away; `launch`, the kernel alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qwen3lab_kernels import store_kv
from qwen3lab_kernels.cost import Cost
from qwen3lab_kernels.dependent import dependent_options, gdc_launch_dependents, gdc_wait

OP = "rms_norm_rope"
HEAD_DIMS = (64, 128)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
Cache = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # k_cache, v_cache, slot_mapping


def gate(head_dim: int, dtype: torch.dtype, device: torch.device, rotary_dim: int | None = None) -> str | None:
    """Why the fused form cannot run here (then `unfused` can), or None."""
    if rotary_dim not in (None, head_dim):
        return f"rotary_dim={rotary_dim} of head_dim={head_dim}: the kernel turns whole heads"
    if head_dim not in HEAD_DIMS:
        return f"head_dim={head_dim}, supported 64|128"
    if dtype not in DTYPES:
        return f"dtype {dtype}, supported bfloat16, float16, float32"
    if device.type != "cuda" and not triton.knobs.runtime.interpret:
        return f"device {device}: the kernel needs a CUDA device"
    return None


def reference(
    qkv: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, eps: float,
    positions: torch.Tensor, cos_sin: torch.Tensor, num_kv_heads: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The specification: q, k in fp32 (fp64 if qkv is)."""
    tokens, dim = qkv.shape[0], q_weight.shape[0]
    heads = qkv.unflatten(1, (-1, dim))[:, :-num_kv_heads].to(torch.promote_types(qkv.dtype, torch.float32))
    normed = heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + eps)
    num_heads = heads.shape[1] - num_kv_heads
    q, k = normed[:, :num_heads] * q_weight, normed[:, num_heads:] * k_weight
    cos, sin = cos_sin.index_select(0, positions).view(tokens, 1, dim).chunk(2, -1)

    def turned(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    return turned(q), turned(k)


def unfused(
    qkv: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, eps: float,
    positions: torch.Tensor, cos_sin: torch.Tensor, num_kv_heads: int, cache: Cache | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """q, k by plain torch ops, for any even D. On a card the pages are written by store_kv's kernel, which captures."""
    q, k = (x.to(qkv.dtype) for x in reference(qkv, q_weight, k_weight, eps, positions, cos_sin, num_kv_heads))
    if cache is not None:
        v = qkv.unflatten(1, (-1, q_weight.shape[0]))[:, -num_kv_heads:]
        (store_kv.store_kv if qkv.is_cuda else store_kv.reference)(k, v, *cache)
    return q, k


@triton.jit
def _turn(p_x, p_y, p_weight, cos, sin, m_in, m_out, eps, D: tl.constexpr):
    """One block of heads, as two tiles [heads, D/2]: their halves are loaded apart, so nothing is shuffled."""
    o = tl.arange(0, D // 2)[None, :]
    a = tl.load(p_x + o, mask=m_in, other=0.0).to(tl.float32)
    b = tl.load(p_x + D // 2 + o, mask=m_in, other=0.0).to(tl.float32)
    scale = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / D + eps)[:, None]
    a = a * scale * tl.load(p_weight + o).to(tl.float32)
    b = b * scale * tl.load(p_weight + D // 2 + o).to(tl.float32)
    tl.store(p_y + o, (a * cos - b * sin).to(p_y.dtype.element_ty), mask=m_out)
    tl.store(p_y + D // 2 + o, (b * cos + a * sin).to(p_y.dtype.element_ty), mask=m_out)


@triton.jit
def _rms_norm_rope(
    p_qkv, p_q_weight, p_k_weight, p_positions, p_cos_sin, p_q, p_k, p_k_cache, p_v_cache, p_slots,
    qkv_stride, kc_stride_p, kc_stride_s, kc_stride_h, vc_stride_p, vc_stride_s, vc_stride_h, eps,
    HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, S: tl.constexpr, BLOCK_H: tl.constexpr,
    STORE: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A program takes one token and BLOCK_H of its heads: q's blocks first, then those of k with the v beside them."""
    i_t = tl.program_id(0).to(tl.int64)
    i_block = tl.program_id(1)
    Q_BLOCKS: tl.constexpr = (HQ + BLOCK_H - 1) // BLOCK_H
    o = tl.arange(0, D // 2)[None, :]
    position = tl.load(p_positions + i_t).to(tl.int64)
    cos = tl.load(p_cos_sin + position * D + o)
    sin = tl.load(p_cos_sin + position * D + D // 2 + o)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    p_row = p_qkv + i_t * qkv_stride
    if i_block < Q_BLOCKS:
        o_h = (i_block * BLOCK_H + tl.arange(0, BLOCK_H))[:, None]
        m_h = o_h < HQ
        _turn(p_row + o_h * D, p_q + i_t * (HQ * D) + o_h * D, p_q_weight, cos, sin, m_h, m_h, eps, D)
    else:
        o_h = ((i_block - Q_BLOCKS) * BLOCK_H + tl.arange(0, BLOCK_H))[:, None]
        m_h = o_h < HKV
        p_k_row = p_row + (HQ + o_h) * D
        if STORE:
            slot = tl.load(p_slots + i_t).to(tl.int64)
            page, offset = slot // S, slot % S
            m_out = o_h < tl.where(slot >= 0, HKV, 0)  # a token to leave out has no heads
            o_d = tl.arange(0, D)[None, :]
            v = tl.load(p_row + (HQ + HKV + o_h) * D + o_d, mask=m_h, other=0.0)
            o_wide = o_h.to(tl.int64)
            p_k_to = p_k_cache + page * kc_stride_p + offset * kc_stride_s + o_wide * kc_stride_h
            _turn(p_k_row, p_k_to, p_k_weight, cos, sin, m_h, m_out, eps, D)
            p_v_to = p_v_cache + page * vc_stride_p + offset * vc_stride_s + o_wide * vc_stride_h
            tl.store(p_v_to + o_d, v, mask=m_out)
        else:
            _turn(p_k_row, p_k + i_t * (HKV * D) + o_h * D, p_k_weight, cos, sin, m_h, m_h, eps, D)


def choose_block(tokens: int, num_heads: int, head_dim: int) -> tuple[int, int]:
    """(heads a program, warps), of the sizes alone. A warp turns 512 values, two accesses of 16 bytes a lane.

    Few tokens: the smallest programs, for the shortest path from load to store. Many: larger ones, fewer to start.
    """
    heads = min(512 // head_dim * (1 if tokens <= 256 else 2), triton.next_power_of_2(num_heads))
    return heads, max(1, heads * head_dim // 512)


def launch(
    qkv: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, eps: float,
    positions: torch.Tensor, cos_sin: torch.Tensor, num_kv_heads: int, cache: Cache | None = None,
    *, out: tuple[torch.Tensor, torch.Tensor | None] | None = None, dependent: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """The kernel: (q, k), k None where it went to the cache. `out` is (q, k) to fill, k unused with a cache.

    `dependent`: start before the kernel that writes qkv has ended (see dependent.py); positions, cos_sin and the
    weights are read early.
    """
    tokens, num_heads, dim = check(qkv, q_weight, k_weight, positions, cos_sin, num_kv_heads)
    shapes = ((tokens, num_heads, dim), (tokens, num_kv_heads, dim))
    if cache is not None:
        store_kv.check_cache(OP, qkv, shapes[1], *cache)
    if out is None:
        out = (qkv.new_empty(shapes[0]), qkv.new_empty(shapes[1]) if cache is None else None)
    q, k = out
    for name, tensor, shape in (("q", q, shapes[0]), ("k", k, shapes[1]))[: 2 if cache is None else 1]:
        if tensor is None or tensor.shape != shape or tensor.dtype != qkv.dtype or tensor.device != qkv.device:
            got = None if tensor is None else f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"
            raise ValueError(f"{OP}: out's {name} is {got}; wanted {shape} {qkv.dtype} on {qkv.device}")
        if not tensor.is_contiguous():
            raise ValueError(f"{OP}: out's {name} has strides {tensor.stride()}; it must be contiguous")
    if tokens == 0:
        return q, k if cache is None else None
    # Without a cache its arguments are never used; q and the positions stand in for them.
    k_cache, v_cache, slots = cache or (q, q, positions)
    strides = (*k_cache.stride()[:3], *v_cache.stride()[:3]) if cache else (0,) * 6
    heads, warps = choose_block(tokens, max(num_heads, num_kv_heads), dim)
    _rms_norm_rope[(tokens, triton.cdiv(num_heads, heads) + triton.cdiv(num_kv_heads, heads))](
        qkv, q_weight, k_weight, positions, cos_sin, q, q if cache else k, k_cache, v_cache, slots,
        qkv.stride(0), *strides, eps, HQ=num_heads, HKV=num_kv_heads, D=dim, S=k_cache.shape[1], BLOCK_H=heads,
        STORE=cache is not None, DEPENDENT=dependent, num_warps=warps, **dependent_options(dependent),
    )  # fmt: skip
    return q, k if cache is None else None


def check(
    qkv: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor,
    positions: torch.Tensor, cos_sin: torch.Tensor, num_kv_heads: int,
) -> tuple[int, int, int]:  # fmt: skip
    """(T, Hq, D); ValueError naming what does not fit."""
    dim = q_weight.shape[-1]
    if reason := gate(dim, qkv.dtype, qkv.device):
        raise ValueError(f"{OP}: {reason}; use rms_norm_rope.unfused")
    if qkv.ndim != 2 or qkv.shape[1] % dim or qkv.stride(1) != 1:
        raise ValueError(
            f"{OP}: qkv is {tuple(qkv.shape)} with strides {qkv.stride()}; wanted [T, (Hq + 2·Hkv)·{dim}], last "
            "stride 1"
        )
    num_heads = qkv.shape[1] // dim - 2 * num_kv_heads
    if num_kv_heads < 1 or num_heads < 1:
        raise ValueError(f"{OP}: num_kv_heads={num_kv_heads} leaves {num_heads} q heads of qkv's {qkv.shape[1] // dim}")
    for name, tensor, shape, dtypes in (
        ("q_weight", q_weight, (dim,), (qkv.dtype,)),
        ("k_weight", k_weight, (dim,), (qkv.dtype,)),
        ("positions", positions, (qkv.shape[0],), (torch.int32, torch.int64)),
        ("cos_sin", cos_sin, (cos_sin.shape[0], dim), (torch.float32,)),
    ):
        if tensor.shape != shape or tensor.dtype not in dtypes or tensor.device != qkv.device:
            raise ValueError(
                f"{OP}: {name} is {tuple(tensor.shape)} {tensor.dtype} on {tensor.device}; wanted {shape} "
                f"{' or '.join(map(str, dtypes))} on {qkv.device}"
            )
        if not tensor.is_contiguous():
            raise ValueError(f"{OP}: {name} has strides {tensor.stride()}; it must be contiguous")
    return qkv.shape[0], num_heads, dim


def cost(
    tokens: int, num_heads: int, num_kv_heads: int, head_dim: int, itemsize: int = 2, *, store: bool = False
) -> Cost:
    """q and k (with `store`, v too) once in and once out, a row of cos_sin a token, an int32 position (and slot)."""
    turned = tokens * (num_heads + num_kv_heads) * head_dim
    moved = itemsize * (turned + (tokens * num_kv_heads * head_dim if store else 0))
    read = moved + itemsize * 2 * head_dim + tokens * (4 * head_dim + (8 if store else 4))
    return Cost(read, moved, 7 * turned)


_LIBRARY = torch.library.Library("qwen3lab", "FRAGMENT")
_INPUTS = "Tensor qkv, Tensor q_weight, Tensor k_weight, float eps, Tensor positions, Tensor cos_sin, int num_kv_heads"
_PAGES = "Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slot_mapping"
_TAGS = (torch.Tag.pt2_compliant_tag,)
_LIBRARY.define(f"rms_norm_rope({_INPUTS}) -> (Tensor, Tensor)", tags=_TAGS)
_LIBRARY.define(f"rms_norm_rope_store({_INPUTS}, {_PAGES}) -> Tensor", tags=_TAGS)
_LIBRARY.impl("rms_norm_rope", launch, "CUDA")
_LIBRARY.impl("rms_norm_rope_store", lambda *a: launch(*a[:7], a[7:])[0], "CUDA")
_LIBRARY.impl("rms_norm_rope", unfused, "CPU")
_LIBRARY.impl("rms_norm_rope_store", lambda *a: unfused(*a[:7], a[7:])[0], "CPU")


@torch.library.register_fake("qwen3lab::rms_norm_rope", lib=_LIBRARY)
def _fake(qkv, q_weight, k_weight, eps, positions, cos_sin, num_kv_heads):  # type: ignore[no-untyped-def]
    tokens, dim = qkv.shape[0], q_weight.shape[0]
    num_heads = qkv.shape[1] // dim - 2 * num_kv_heads
    return qkv.new_empty(tokens, num_heads, dim), qkv.new_empty(tokens, num_kv_heads, dim)


@torch.library.register_fake("qwen3lab::rms_norm_rope_store", lib=_LIBRARY)
def _fake_store(*args):  # type: ignore[no-untyped-def]
    return _fake(*args[:7])[0]


rms_norm_rope = torch.ops.qwen3lab.rms_norm_rope.default
rms_norm_rope_store = torch.ops.qwen3lab.rms_norm_rope_store.default
