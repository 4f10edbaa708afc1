"""decode_attention: a decode step's whole attention in one launch, from the qkv projection to the heads' results.

    qkv           [B, (Hq + 2·Hkv)·D]  the projection of each row's new token; row stride of its own, last 1
    q_weight, k_weight [D]             of the per-head RMSNorm
    positions     [B] int32, int64     cos_sin fp32 [positions, D] as in rms_norm_rope
    k, v          [P, S, Hkv, D]       the cache, which takes the new key and value: strides of their own, last 1
    slot_mapping  [B] int32            page · S + offset of the new token, −1 for a padding row: stores and sees nothing
    block_table   [B, N] int32         seq_lens [B] int32: keys of each row, the new one included
    ->            [B, Hq, D]           zeros for a padding row

The same as `rms_norm_rope` with a cache and `paged_decode` with Q = 1 after it, but that the new key never travels: the
program that makes it adds it to its own sums, so no other waits for it, and every key that is read from the cache was
written in an earlier step and can be asked for before the projection has ended. Where a sequence is split, the program
that ends last combines: who that is, a counter tells.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from qwen3lab_kernels import paged_decode, rms_norm_rope, store_kv
from qwen3lab_kernels.cost import Cost
from qwen3lab_kernels.dependent import dependent_options, gdc_launch_dependents, gdc_wait
from qwen3lab_kernels.paged_decode import LSE_COLUMNS, MAX_SPLITS, ask_for_keys, choose_cut, keys_per_split
from qwen3lab_kernels.paged_prefill import LOG2_E, LOWEST, Cut, attend_keys
from qwen3lab_kernels.pages import check_out, check_pages

OP = "decode_attention"
KEYS_WORTH_A_SPLIT = 64  # one tile: combining costs no launch here


def reference(
    qkv: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, eps: float,
    positions: torch.Tensor, cos_sin: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    slot_mapping: torch.Tensor, block_table: torch.Tensor, seq_lens: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """The specification, [B, Hq, D] in fp32 (fp64 if qkv is); k and v are left as they are."""
    hkv, d = k.shape[2:]
    q, new_k = rms_norm_rope.reference(qkv, q_weight, k_weight, eps, positions, cos_sin, hkv)
    k, v = k.clone(), v.clone()
    new_v = qkv.unflatten(1, (-1, d))[:, -hkv:]
    store_kv.reference(new_k.to(k.dtype), new_v.to(v.dtype), k, v, slot_mapping)
    lens = torch.where(slot_mapping >= 0, seq_lens, 0)
    return paged_decode.reference(q[:, None], k, v, block_table, lens)[:, 0]


@triton.jit
def _turned(p_x, p_weight, p_cos_sin, m_in, eps, D: tl.constexpr):
    """RMSNorm and rotation of heads at p_x [.., 1], fp32 [.., D]. The other half of a head is loaded a second time:
    that is shorter than a shuffle, as it is in the nearest cache."""
    o = tl.arange(0, D)[None, :]
    HALF: tl.constexpr = D // 2
    o_other = (o + HALF) % D
    x = tl.load(p_x + o, mask=m_in, other=0.0).to(tl.float32)
    other = tl.load(p_x + o_other, mask=m_in, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
    x = x * scale * tl.load(p_weight + o).to(tl.float32)
    other = other * scale * tl.load(p_weight + o_other).to(tl.float32)
    cos = tl.load(p_cos_sin + o % HALF)
    sin = tl.load(p_cos_sin + HALF + o % HALF)
    return x * cos + tl.where(o < HALF, -other, other) * sin


@triton.jit
def _decode(
    p_qkv, p_q_weight, p_k_weight, p_positions, p_cos_sin, p_k, p_v, p_slots, p_table, p_lens, p_out, p_work, p_count,
    splits, eps, scale,
    qkv_b, k_page, k_token, k_h, v_page, v_token, v_h, table_b, out_b, out_h,
    G: tl.constexpr, HQ: tl.constexpr, HKV: tl.constexpr, S: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, AHEAD: tl.constexpr,
    DIRECT: tl.constexpr, APART: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One split of one KV head of one sequence. The first split has the new key too, and stores it."""
    i_head = tl.program_id(0).to(tl.int64)
    i_split = tl.program_id(1)
    i_b = tl.program_id(2).to(tl.int64)
    slot = tl.load(p_slots + i_b).to(tl.int64)
    old = tl.where(slot >= 0, tl.load(p_lens + i_b) - 1, 0)  # keys in the cache
    keys = keys_per_split(old, splits, BLOCK_N)
    first = i_split * keys
    last = tl.minimum(first + keys, old)
    p_k += i_head * k_h
    p_v += i_head * v_h
    p_table += i_b * table_b
    p_cos_sin += tl.load(p_positions + i_b).to(tl.int64) * D
    if DEPENDENT:
        gdc_launch_dependents()
        ask_for_keys(
            p_k, p_v, p_table, first, tl.minimum(last, first + AHEAD), k_page, k_token, v_page, v_token, S, D, BLOCK_N
        )
        gdc_wait()
    o_m = tl.arange(0, BLOCK_M)
    o_h = i_head * G + o_m % G
    m_m = (o_m < G)[:, None]
    o_d = tl.arange(0, D)[None, :]
    p_row = p_qkv + i_b * qkv_b
    dtype: tl.constexpr = p_qkv.dtype.element_ty

    acc = tl.zeros([BLOCK_M, D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    if i_split == 0 or first < last:
        q = _turned(p_row + o_h[:, None] * D, p_q_weight, p_cos_sin, m_m, eps, D).to(dtype)
        masked = first
        if APART:
            masked = tl.maximum(first, last // BLOCK_N * BLOCK_N)
            acc, total, top = attend_keys(
                q, acc, total, top, o_m * 0 + old, first, masked, p_k, p_v, p_table, scale,
                k_page, k_token, v_page, v_token, S, D, BLOCK_N, False,
            )  # fmt: skip
        acc, total, top = attend_keys(
            q, acc, total, top, o_m * 0 + old, masked, last, p_k, p_v, p_table, scale,
            k_page, k_token, v_page, v_token, S, D, BLOCK_N, True,
        )  # fmt: skip
        if i_split == 0:
            o_one = tl.arange(0, 1)[:, None]
            o_slot = slot + o_one
            m_new = o_slot >= 0
            p_new = p_row + (HQ + i_head + o_one) * D
            new_k = _turned(p_new, p_k_weight, p_cos_sin, m_new, eps, D).to(dtype)
            new_v = tl.load(p_new + HKV * D + o_d, mask=m_new, other=0.0)
            tl.store(p_k + o_slot // S * k_page + o_slot % S * k_token + o_d, new_k, mask=m_new)
            tl.store(p_v + o_slot // S * v_page + o_slot % S * v_token + o_d, new_v, mask=m_new)
            score = tl.sum(q.to(tl.float32) * new_k.to(tl.float32), 1) * scale
            score = tl.where(slot >= 0, score, -float("inf"))
            new_top = tl.maximum(top, score)
            p = tl.exp2(score - new_top)
            decay = tl.exp2(top - new_top)
            total = total * decay + p
            acc = acc * decay[:, None] + p[:, None] * new_v.to(tl.float32)
            top = new_top
        acc /= tl.where(total > 0, total, 1.0)[:, None]

    p_out += i_b * out_b
    if DIRECT:
        tl.store(p_out + o_h[:, None] * out_h + o_d, acc.to(p_out.dtype.element_ty), mask=m_m)
    else:
        p_part = p_work + (i_b * splits * HQ + o_h) * COLUMNS
        if i_split == 0 or first < last:
            lse = tl.where(total > 0, top + tl.log2(tl.where(total > 0, total, 1.0)), -float("inf"))
            p_mine = p_part + i_split * HQ * COLUMNS
            tl.store(p_mine[:, None] + o_d, acc, mask=m_m)
            tl.store(p_mine + D, lse, mask=o_m < G)
        # Every thread's part is written before one of them says so, and read only after all have said so.
        tl.debug_barrier()
        p_count += i_b * HKV + i_head
        if tl.atomic_add(p_count, 1, sem="acq_rel", scope="gpu") == splits - 1:
            tl.store(p_count, 0)  # as the next launch wants it
            acc = tl.zeros([BLOCK_M, D], tl.float32)
            total = tl.zeros([BLOCK_M], tl.float32)
            top = tl.full([BLOCK_M], LOWEST, tl.float32)
            for i in tl.range(0, tl.maximum(tl.cdiv(old, tl.maximum(keys, 1)), 1)):
                p_one = p_part + i * HQ * COLUMNS
                lse = tl.load(p_one + D, mask=o_m < G, other=-float("inf"), cache_modifier=".cg")
                part = tl.load(p_one[:, None] + o_d, mask=m_m, other=0.0, cache_modifier=".cg")
                new_top = tl.maximum(top, lse)
                weight = tl.exp2(lse - new_top)
                decay = tl.exp2(top - new_top)
                total = total * decay + weight
                acc = acc * decay[:, None] + weight[:, None] * part
                top = new_top
            acc /= tl.where(total > 0, total, 1.0)[:, None]
            tl.store(p_out + o_h[:, None] * out_h + o_d, acc.to(p_out.dtype.element_ty), mask=m_m)


def choose_splits(b: int, hkv: int, max_len: int, sm_count: int) -> int:
    """Programs a (sequence, KV head), a pure function of sizes: as in paged_decode, of shorter splits."""
    return paged_decode.choose_splits(b, hkv, max_len, sm_count, KEYS_WORTH_A_SPLIT)


def counter(b: int, hkv: int, device: torch.device) -> torch.Tensor:
    """[B · Hkv] int32 zeros: which splits have ended. Every launch leaves it as it was."""
    return torch.zeros(b * hkv, dtype=torch.int32, device=device)


def decode_attention(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    slot_mapping: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    max_len: int | None = None,
    num_splits: int | None = None,
    out: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    count: torch.Tensor | None = None,
    dependent: bool = False,
    cut: Cut | None = None,
) -> torch.Tensor:
    """Launch. The options are paged_decode's; `count`: as `counter` makes it, zeros, one for launches that follow one
    another, needed where num_splits > 1.

    `dependent`: all but qkv is read early, so no key of the row may come from a kernel of the same chain.
    """
    b, hq, d = rms_norm_rope.check(qkv, q_weight, k_weight, positions, cos_sin, k.shape[2])
    hkv, page_size = k.shape[2], k.shape[1]
    store_kv.check_cache(OP, qkv, (b, hkv, d), k, v, slot_mapping)
    out = torch.empty((b, hq, d), dtype=qkv.dtype, device=qkv.device) if out is None else out
    check_pages(OP, out, k, v, block_table, seq_lens)
    if out.shape != (b, hq, d):
        raise ValueError(f"{OP}: out is {tuple(out.shape)}; wanted {(b, hq, d)}")
    check_out(OP, out, out)
    if block_table.shape[0] != b:
        raise ValueError(f"{OP}: qkv has {b} rows, block_table {block_table.shape[0]}; they must agree")
    group = hq // hkv
    if group > paged_decode.MAX_GROUP_ROWS:
        raise ValueError(f"{OP}: {group} heads a group, supported 1 to {paged_decode.MAX_GROUP_ROWS}")
    max_len = block_table.shape[1] * page_size if max_len is None else max_len
    sm_count = paged_decode.sm_count(qkv.device)
    splits = choose_splits(max(b, 1), hkv, max_len, sm_count) if num_splits is None else num_splits
    if not 1 <= splits <= MAX_SPLITS:
        raise ValueError(f"{OP}: num_splits={splits}, supported 1 to {MAX_SPLITS}; leave it out to have it chosen")
    if b == 0:
        return out
    if splits > 1:
        needed = paged_decode.workspace_shape(b, splits, 1, hq, d)
        workspace = paged_decode.check_workspace(OP, workspace, needed, qkv.device)
        count = counter(b, hkv, qkv.device) if count is None else count
        if count.dtype != torch.int32 or count.device != qkv.device or count.numel() < b * hkv:
            raise ValueError(
                f"{OP}: count is {tuple(count.shape)} {count.dtype} on {count.device}; wanted {b * hkv} int32 zeros on "
                f"{qkv.device}"
            )
    cut = cut or choose_cut(group, qkv.element_size(), max_len // splits)
    _decode[(hkv, splits, b)](
        qkv, q_weight, k_weight, positions, cos_sin, k, v, slot_mapping, block_table, seq_lens, out,
        workspace if splits > 1 else None, count if splits > 1 else None, splits, eps, d**-0.5 * LOG2_E,
        qkv.stride(0), *k.stride()[:3], *v.stride()[:3], block_table.stride(0), *out.stride()[:2],
        G=group, HQ=hq, HKV=hkv, S=page_size, D=d, COLUMNS=d + LSE_COLUMNS, BLOCK_M=cut.m, BLOCK_N=cut.n,
        AHEAD=paged_decode.KEYS_AHEAD, DIRECT=splits == 1, APART=cut.apart, DEPENDENT=dependent,
        num_warps=cut.warps, num_stages=cut.stages, **dependent_options(dependent),
    )  # fmt: skip
    return out


def cost(lens: Sequence[int], hq: int, hkv: int, d: int, page_size: int, itemsize: int = 2) -> Cost:
    """Bytes and FLOPs of one call: rms_norm_rope's store and paged_decode's read, less q and the new key in between."""
    b = len(lens)
    turned = rms_norm_rope.cost(b, hq, hkv, d, itemsize, store=True)
    attended = paged_decode.cost(lens, 1, hq, hkv, d, page_size, itemsize)
    between = itemsize * b * d
    return turned + attended + Cost(-between * (hq + 2 * hkv), -between * hq, 0)
