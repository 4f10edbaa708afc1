"""paged_prefill: causal attention of many new tokens, whole prompts or chunks, over the pages of all keys so far.

    q             [T, Hq, D]       bfloat16, float16 or float32; any strides but the last, which is 1
    k, v          [P, S, Hkv, D]   of q's dtype, likewise
    cu_seqlens_q  [B + 1] int32    row b's queries are [cu_seqlens_q[b], cu_seqlens_q[b + 1])
    seq_lens      [B] int32        keys of each row, its new tokens included
    block_table   [B, N] int32
    ->            [T, Hq, D]       query i of row b sits at position len − q_len + i and sees the keys up to there

A program takes a KV head and a run of queries, with all heads of the group as rows of one matrix (flash attention 2):
keys are read once for the group, and a short chunk fills the tile as well as a long one. Tokens of T that belong to no
row are left as they are. Page ids at or past a length are never used, and what a page holds there never counts.

The loop over keys, `attend_keys`, serves `paged_decode` too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import triton
import triton.language as tl

from qwen3lab_kernels.cost import Cost
from qwen3lab_kernels.pages import check_out, check_pages

OP = "paged_prefill"

LOG2_E = 1.4426950408889634
# Running maxima start here and not at −inf, so that a row that has seen no key yet makes no inf − inf.
LOWEST = tl.constexpr(-1.0e30)


@dataclass(frozen=True)
class Cut:
    """How a program works: rows of its matrix, keys a tile, warps, stages of the pipeline.

    `apart`: full tiles go through a loop without masks, and the last ones through their own. Worth its start-up (the
    second loop's loads wait for the first loop) only where there are many full tiles.
    """

    m: int
    n: int
    warps: int
    stages: int
    apart: bool


def choose_cut(group_rows: int, itemsize: int) -> Cut:
    """The cut for at most `group_rows` queries × heads of a group; a pure function of its arguments.

    Two warpgroups with 64 rows each, which is what the tensor cores take at once; smaller tiles for short chunks.
    """
    if itemsize == 4:
        return Cut(m=32, n=16, warps=8, stages=2, apart=True)  # no tensor cores: what registers hold
    if group_rows <= 64:
        return Cut(m=max(16, triton.next_power_of_2(group_rows)), n=64, warps=4, stages=3, apart=True)
    return Cut(m=128, n=64, warps=8, stages=3, apart=True)


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    scale: float | None = None,
) -> torch.Tensor:
    """The specification, [T, Hq, D] in fp32 (fp64 if q is)."""
    (_, hq, d), (_, page_size, hkv, _) = q.shape, k.shape
    out = torch.zeros(q.shape, dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
    for b, (first, last) in enumerate(pairwise(cu_seqlens_q.tolist())):
        length = int(seq_lens[b])
        pages = block_table[b, : triton.cdiv(length, page_size)].long()
        keys, values = (x[pages].flatten(0, 1)[:length].to(out.dtype) for x in (k, v))
        for i in range(first, last):
            seen = length - (last - 1 - i)
            for h in range(hq) if seen > 0 else ():
                scores = keys[:seen, h // (hq // hkv)] @ q[i, h].to(out.dtype) * (scale or d**-0.5)
                out[i, h] = scores.softmax(0) @ values[:seen, h // (hq // hkv)]
    return out


@triton.jit
def _pages(p_table, start, last, S: tl.constexpr, BLOCK_N: tl.constexpr):
    """The page of the tile at `start`, or where a tile spans several, of each of its keys; 0 at or past `last`."""
    n = start
    if S < BLOCK_N:
        n += tl.arange(0, BLOCK_N)
    return tl.load(p_table + n // S, mask=n < last, other=0).to(tl.int64)


@triton.jit
def attend_keys(
    q, acc, total, top, o_seen, first, last, p_k, p_v, p_table, scale,
    k_page, k_token, v_page, v_token,
    S: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Softmax as it goes, of q [M, D] over keys [first, last): the new acc [M, D], total [M] and top [M] (log2 domain).

    `first` is a multiple of BLOCK_N. Row m sees the keys before o_seen[m]; without MASKED, every row sees every key and
    the tiles are full. p_k, p_v point at the head in page 0, p_table at the sequence's row.
    """
    o_n = tl.arange(0, BLOCK_N)
    o_d = tl.arange(0, D)
    # Tiles and pages are aligned to each other: where a key lies in its page depends on the tile only if S is larger.
    o_s = (o_n % S).to(tl.int64)
    p_k_tile = p_k + o_s[:, None] * k_token + o_d[None, :]
    p_v_tile = p_v + o_s[:, None] * v_token + o_d[None, :]
    # A tile's pages are asked for a tile ahead. Asked for in their own turn they would be a stage of the pipeline, its
    # keys would wait in the next for them, and half of the stages would hold page ids.
    page = _pages(p_table, first, last, S, BLOCK_N)
    for start in tl.range(first, last, BLOCK_N):
        n = start + o_n
        m_n = n < last
        if S >= BLOCK_N:
            within = tl.cast(start % S, tl.int64)
            p_k_now = p_k_tile + (page * k_page + within * k_token)
            p_v_now = p_v_tile + (page * v_page + within * v_token)
        else:
            p_k_now = p_k_tile + (page * k_page)[:, None]
            p_v_now = p_v_tile + (page * v_page)[:, None]
        page = _pages(p_table, start + BLOCK_N, last, S, BLOCK_N)
        if MASKED:
            b_k = tl.load(p_k_now, mask=m_n[:, None], other=0.0)
        else:
            b_k = tl.load(p_k_now)
        scores = tl.dot(q, tl.trans(b_k), input_precision="ieee")
        if MASKED:
            scores = tl.where(n[None, :] < o_seen[:, None], scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, 1) * scale)
        p = tl.exp2(scores * scale - new_top[:, None])
        decay = tl.exp2(top - new_top)
        total = total * decay + tl.sum(p, 1)
        if MASKED:
            # Past the length lies whatever a page held before, NaN even, and 0 · NaN is NaN: p = 0 alone is no mask.
            b_v = tl.load(p_v_now, mask=m_n[:, None], other=0.0)
        else:
            b_v = tl.load(p_v_now)
        acc = tl.dot(p.to(b_v.dtype), b_v, acc * decay[:, None], input_precision="ieee")
        top = new_top
    return acc, total, top


@triton.jit
def _prefill(
    p_q, p_k, p_v, p_bounds, p_lens, p_table, p_out, scale,
    q_t, q_h, k_page, k_token, k_h, v_page, v_token, v_h, table_b, out_t, out_h,
    G: tl.constexpr, S: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    APART: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows (query × head of the group) of one KV head of one sequence."""
    i_head = tl.program_id(0).to(tl.int64)
    # The last queries see the most keys: they start first, and the short ones fill the end of the launch.
    i_m = tl.num_programs(1) - 1 - tl.program_id(1)
    i_b = tl.program_id(2).to(tl.int64)
    begin = tl.load(p_bounds + i_b)
    queries = tl.load(p_bounds + i_b + 1) - begin
    o_row = i_m * BLOCK_M + tl.arange(0, BLOCK_M)
    i_q = o_row // G
    i_first = i_m * BLOCK_M // G
    if i_first >= queries:
        return
    length = tl.load(p_lens + i_b)
    history = length - queries
    i_t = (begin + i_q).to(tl.int64)
    i_h = i_head * G + o_row % G
    m_m = (i_q < queries)[:, None]
    o_d = tl.arange(0, D)[None, :]
    b_q = tl.load(p_q + (i_t * q_t + i_h * q_h)[:, None] + o_d, mask=m_m, other=0.0)
    o_seen = history + i_q + 1

    p_k += i_head * k_h
    p_v += i_head * v_h
    p_table += i_b * table_b
    last = tl.minimum(length, history + (i_m * BLOCK_M + BLOCK_M - 1) // G + 1)
    masked = 0
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    if APART:
        masked = tl.maximum(history + i_first + 1, 0) // BLOCK_N * BLOCK_N  # what even the first query sees
        acc, total, top = attend_keys(
            b_q, acc, total, top, o_seen, 0, masked, p_k, p_v, p_table, scale,
            k_page, k_token, v_page, v_token, S, D, BLOCK_N, False,
        )  # fmt: skip
    acc, total, top = attend_keys(
        b_q, acc, total, top, o_seen, masked, last, p_k, p_v, p_table, scale,
        k_page, k_token, v_page, v_token, S, D, BLOCK_N, True,
    )  # fmt: skip
    acc /= tl.where(total > 0, total, 1.0)[:, None]
    tl.store(p_out + (i_t * out_t + i_h * out_h)[:, None] + o_d, acc.to(p_out.dtype.element_ty), mask=m_m)


def paged_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    max_query_len: int,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    cut: Cut | None = None,
) -> torch.Tensor:
    """Launch. `max_query_len`: the longest row's number of queries, known on the host; queries past it get no result.

    `scale` is 1/√D by default.
    """
    op = OP
    if q.ndim != 3:
        raise ValueError(f"{op}: q {tuple(q.shape)}; wanted [T, Hq, D]")
    check_pages(op, q, k, v, block_table, seq_lens)
    b, group = block_table.shape[0], q.shape[1] // k.shape[2]
    if cu_seqlens_q.shape != (b + 1,) or cu_seqlens_q.dtype != torch.int32 or cu_seqlens_q.device != q.device:
        raise ValueError(
            f"{op}: cu_seqlens_q is {tuple(cu_seqlens_q.shape)} {cu_seqlens_q.dtype} on {cu_seqlens_q.device}; "
            f"wanted [{b + 1}] int32 on {q.device}"
        )
    if not cu_seqlens_q.is_contiguous():
        raise ValueError(f"{op}: cu_seqlens_q has strides {cu_seqlens_q.stride()}; it must be contiguous")
    if not 0 <= max_query_len <= q.shape[0]:
        raise ValueError(f"{op}: max_query_len={max_query_len}, wanted 0 to T={q.shape[0]}; give the longest row's")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    check_out(op, out, q)
    if b == 0 or max_query_len == 0:
        return out
    cut = cut or choose_cut(max_query_len * group, q.element_size())
    _prefill[(k.shape[2], triton.cdiv(max_query_len * group, cut.m), b)](
        q, k, v, cu_seqlens_q, seq_lens, block_table, out, (scale or q.shape[-1] ** -0.5) * LOG2_E,
        *q.stride()[:2], *k.stride()[:3], *v.stride()[:3], block_table.stride(0), *out.stride()[:2],
        G=group, S=k.shape[1], D=q.shape[2], BLOCK_M=cut.m, BLOCK_N=cut.n, APART=cut.apart,
        num_warps=cut.warps, num_stages=cut.stages,
    )  # fmt: skip
    return out


def cost(
    query_lens: Sequence[int], lens: Sequence[int], hq: int, hkv: int, d: int, page_size: int, itemsize: int = 2
) -> Cost:
    """Bytes and FLOPs of one call: every key, value and page id a row has, q, and the result; causal products only."""
    ids = len(lens) + sum(triton.cdiv(n, page_size) for n in lens)
    query = itemsize * sum(query_lens) * hq * d
    seen = sum(max(0, n - i) for t, n in zip(query_lens, lens, strict=True) for i in range(t))
    return Cost(itemsize * 2 * sum(lens) * hkv * d + query + 4 * ids, query, 4 * seen * hq * d)
