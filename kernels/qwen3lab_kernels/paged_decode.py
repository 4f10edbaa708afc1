"""paged_decode: attention of Q query rows a sequence (1: decode, k + 1: verify) over the pages of its keys and values.

    q            [B, Q, Hq, D]    bfloat16, float16 or float32; any strides but the last, which is 1
    k, v         [P, S, Hkv, D]   of q's dtype, likewise: a strided view of any cache with tokens in pages will do
    block_table  [B, N] int32     seq_lens [B] int32: keys of each row, its Q new tokens included; 0 for a padding row
    ->           [B, Q, Hq, D]    row i sees keys 0 … len − Q + i, and gives zeros where there are none

Keys are split among programs (flash decoding), each of which takes a KV head with its whole group of query heads and
all Q rows as one matrix, so that a key is read once. Every sequence's own length is cut into the given number of
splits, on the device: a captured launch stays right when lengths change. Page ids at or past a length are never read.

The loop over keys is `paged_prefill.attend_keys`; what is here is the splitting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache

import torch
import triton
import triton.language as tl

from qwen3lab_kernels import paged_prefill
from qwen3lab_kernels.cost import Cost
from qwen3lab_kernels.dependent import dependent_options, gdc_launch_dependents, gdc_wait, line_starts, prefetch
from qwen3lab_kernels.paged_prefill import LOG2_E, LOWEST, Cut, attend_keys
from qwen3lab_kernels.pages import check_out, check_pages

OP = "paged_decode"
MAX_GROUP_ROWS = 128  # query rows times heads of a group: what one program keeps in registers
MAX_SPLITS = 128
KEYS_WORTH_A_SPLIT = 256  # below this, what a further program saves is less than combining costs
PROGRAMS_PER_SM = 2  # that are resident at once with the cuts below
KEYS_AHEAD = tl.constexpr(512)  # of a split, asked for before the predecessor has ended
LSE_COLUMNS = 4  # one for the log-sum-exp, the rest so that rows stay aligned to 16 bytes


def choose_cut(group_rows: int, itemsize: int, keys: int) -> Cut:
    """The cut for a group of heads × query rows, with about `keys` keys a split; a pure function of its arguments."""
    m = max(16, triton.next_power_of_2(group_rows))
    return Cut(m=m, n=64 if itemsize == 2 else 16, warps=4 if m <= 64 else 8, stages=3, apart=keys >= 1024)


@lru_cache(maxsize=1024)  # every layer of a step asks the same
def choose_splits(b: int, hkv: int, max_len: int, sm_count: int, keys_worth: int = KEYS_WORTH_A_SPLIT) -> int:
    """Programs a (sequence, KV head): the fewest that come within a tenth of the fullest last wave one could have."""
    slots, units = PROGRAMS_PER_SM * sm_count, b * hkv
    most = max(1, min(MAX_SPLITS, triton.cdiv(max_len, keys_worth)))
    filled = [units * splits / (slots * triton.cdiv(units * splits, slots)) for splits in range(1, most + 1)]
    return next(splits for splits, share in enumerate(filled, 1) if share >= 0.9 * max(filled))


def workspace_shape(b: int, splits: int, rows: int, hq: int, d: int) -> tuple[int, ...]:
    """[B, splits, Q, Hq, D + 4] fp32: each split's result, and its log2-sum-exp2 in column D."""
    return (b, splits, rows, hq, d + LSE_COLUMNS)


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float | None = None,
) -> torch.Tensor:
    """The specification, [B, Q, Hq, D] in fp32 (fp64 if q is): paged_prefill's, of rows with Q queries each."""
    bounds = torch.arange(q.shape[0] + 1) * q.shape[1]
    return paged_prefill.reference(q.flatten(0, 1), k, v, bounds, seq_lens, block_table, scale).view(q.shape)


@triton.jit
def keys_per_split(length, splits, BLOCK_N: tl.constexpr):
    """Whole tiles, so that every split starts at one; the last splits may be left with none."""
    return tl.cdiv(tl.cdiv(length, splits), BLOCK_N) * BLOCK_N


@triton.jit
def ask_for_keys(
    p_k, p_v, p_table, first, last, k_page, k_token, v_page, v_token,
    S: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Keys and values [first, last) of a head into L2, but for the new tokens' they were written steps ago."""
    o_line = line_starts(p_k, D)
    for start in range(first, last, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        page = tl.load(p_table + n // S, mask=n < last, other=0).to(tl.int64)
        prefetch(p_k + (page * k_page + (n % S) * k_token)[:, None] + o_line[None, :])
        prefetch(p_v + (page * v_page + (n % S) * v_token)[:, None] + o_line[None, :])


@triton.jit
def _split(
    p_q, p_k, p_v, p_table, p_lens, p_out, p_work, splits, scale,
    q_b, q_q, q_h, k_page, k_token, k_h, v_page, v_token, v_h, table_b, out_b, out_q, out_h,
    Q: tl.constexpr, G: tl.constexpr, HQ: tl.constexpr, S: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DIRECT: tl.constexpr, APART: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One split of one KV head of one sequence: to out if it is the only one (DIRECT), else to the workspace."""
    i_head = tl.program_id(0).to(tl.int64)
    i_split = tl.program_id(1)
    i_b = tl.program_id(2).to(tl.int64)
    length = tl.load(p_lens + i_b)
    keys = keys_per_split(length, splits, BLOCK_N)
    first = i_split * keys
    last = tl.minimum(first + keys, length)
    p_k += i_head * k_h
    p_v += i_head * v_h
    p_table += i_b * table_b
    if DEPENDENT:
        gdc_launch_dependents()
        ask_for_keys(
            p_k, p_v, p_table, first, tl.minimum(last, first + KEYS_AHEAD), k_page, k_token, v_page, v_token,
            S, D, BLOCK_N,
        )  # fmt: skip
        gdc_wait()
    if not DIRECT and first >= last:
        return  # _combine knows that there is nothing here
    o_m = tl.arange(0, BLOCK_M)
    i_q = o_m // G
    i_h = i_head * G + o_m % G
    m_m = (o_m < Q * G)[:, None]
    o_d = tl.arange(0, D)[None, :]
    b_q = tl.load(p_q + i_b * q_b + (i_q.to(tl.int64) * q_q + i_h * q_h)[:, None] + o_d, mask=m_m, other=0.0)
    o_seen = length - Q + 1 + i_q

    acc = tl.zeros([BLOCK_M, D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    masked = first
    if APART:
        full = tl.minimum(last, length - Q + 1) // BLOCK_N * BLOCK_N  # what even the first row sees
        masked = tl.maximum(first, full)
        acc, total, top = attend_keys(
            b_q, acc, total, top, o_seen, first, masked, p_k, p_v, p_table, scale,
            k_page, k_token, v_page, v_token, S, D, BLOCK_N, False,
        )  # fmt: skip
    acc, total, top = attend_keys(
        b_q, acc, total, top, o_seen, masked, last, p_k, p_v, p_table, scale,
        k_page, k_token, v_page, v_token, S, D, BLOCK_N, True,
    )  # fmt: skip
    divisor = tl.where(total > 0, total, 1.0)  # a row that sees nothing gives zeros
    acc /= divisor[:, None]
    if DIRECT:
        p_o = p_out + i_b * out_b + (i_q.to(tl.int64) * out_q + i_h * out_h)[:, None] + o_d
        tl.store(p_o, acc.to(p_out.dtype.element_ty), mask=m_m)
    else:
        p_row = p_work + (((i_b * splits + i_split) * Q + i_q) * HQ + i_h) * COLUMNS
        tl.store(p_row[:, None] + o_d, acc, mask=m_m)
        lse = tl.where(total > 0, top + tl.log2(divisor), -float("inf"))
        tl.store(p_row + D, lse, mask=o_m < Q * G)


@triton.jit
def _combine(
    p_work, p_lens, p_out, splits, out_b, out_q, out_h,
    Q: tl.constexpr, HQ: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_S: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One head of one query row: the splits' results, weighed by 2^lse. Empty splits wrote nothing and are not read."""
    i_h = tl.program_id(0).to(tl.int64)
    i_q = tl.program_id(1).to(tl.int64)
    i_b = tl.program_id(2).to(tl.int64)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    length = tl.load(p_lens + i_b)
    used = tl.cdiv(length, tl.maximum(keys_per_split(length, splits, BLOCK_N), 1))
    o_d = tl.arange(0, D)
    acc = tl.zeros([D], tl.float32)
    total = 0.0
    top = LOWEST
    for first in tl.range(0, used, BLOCK_S):
        o_s = first + tl.arange(0, BLOCK_S)
        m_s = o_s < used
        p_row = p_work + (((i_b * splits + o_s) * Q + i_q) * HQ + i_h) * COLUMNS
        lse = tl.load(p_row + D, mask=m_s, other=-float("inf"))
        part = tl.load(p_row[:, None] + o_d[None, :], mask=m_s[:, None], other=0.0)
        new_top = tl.maximum(top, tl.max(lse, 0))
        weight = tl.exp2(lse - new_top)
        decay = tl.exp2(top - new_top)
        total = total * decay + tl.sum(weight, 0)
        acc = acc * decay + tl.sum(weight[:, None] * part, 0)
        top = new_top
    acc /= tl.where(total > 0, total, 1.0)
    tl.store(p_out + i_b * out_b + i_q * out_q + i_h * out_h + o_d, acc.to(p_out.dtype.element_ty))


@cache
def sm_count(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def check_workspace(
    op: str, workspace: torch.Tensor | None, needed: tuple[int, ...], device: torch.device
) -> torch.Tensor:
    """The workspace given by the caller, contiguous fp32 with room for `needed`, or a new one."""
    if workspace is None:
        return torch.empty(needed, dtype=torch.float32, device=device)
    if (
        workspace.dtype != torch.float32
        or workspace.device != device
        or not workspace.is_contiguous()
        or workspace.numel() < math.prod(needed)
    ):
        raise ValueError(
            f"{op}: workspace is {tuple(workspace.shape)} {workspace.dtype} on {workspace.device}; wanted contiguous "
            f"float32 on {device} with room for {needed}"
        )
    return workspace


def paged_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    max_len: int | None = None,
    num_splits: int | None = None,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    dependent: bool = False,
    cut: Cut | None = None,
) -> torch.Tensor:
    """Launch. `max_len` (default N · S) only chooses `num_splits` where that is not given: no length makes it wrong.

    `scale` is 1/√D by default. `workspace`: contiguous fp32, at least workspace_shape's size, needed where
    num_splits > 1. `dependent`: start before the predecessor has ended (see dependent.py); lengths and block table are
    read early.
    """
    op = OP
    if q.ndim != 4:
        raise ValueError(f"{op}: q {tuple(q.shape)}; wanted [B, Q, Hq, D]")
    check_pages(op, q, k, v, block_table, seq_lens)
    (b, rows, hq, d), (_, page_size, hkv, _) = q.shape, k.shape
    if block_table.shape[0] != b:
        raise ValueError(f"{op}: q has {b} sequences, block_table {block_table.shape[0]}; they must agree")
    group = hq // hkv
    if not 1 <= rows * group <= MAX_GROUP_ROWS:
        raise ValueError(
            f"{op}: {rows} query rows × {group} heads a group, supported 1 to {MAX_GROUP_ROWS}; use paged_prefill"
        )
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    check_out(op, out, q)
    max_len = block_table.shape[1] * page_size if max_len is None else max_len
    splits = choose_splits(max(b, 1), hkv, max_len, sm_count(q.device)) if num_splits is None else num_splits
    if not 1 <= splits <= MAX_SPLITS:
        raise ValueError(f"{op}: num_splits={splits}, supported 1 to {MAX_SPLITS}; leave it out to have it chosen")
    if b == 0:
        return out
    direct = splits == 1
    needed = workspace_shape(b, splits, rows, hq, d)
    workspace = None if direct else check_workspace(op, workspace, needed, q.device)
    cut = cut or choose_cut(rows * group, q.element_size(), max_len // splits)
    options = dependent_options(dependent)
    _split[(hkv, splits, b)](
        q, k, v, block_table, seq_lens, out, workspace, splits, (scale or d**-0.5) * LOG2_E,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], block_table.stride(0), *out.stride()[:3],
        Q=rows, G=group, HQ=hq, S=page_size, D=d, COLUMNS=d + LSE_COLUMNS, BLOCK_M=cut.m, BLOCK_N=cut.n,
        DIRECT=direct, APART=cut.apart, DEPENDENT=dependent, num_warps=cut.warps, num_stages=cut.stages, **options,
    )  # fmt: skip
    if not direct:
        _combine[(hq, rows, b)](
            workspace, seq_lens, out, splits, *out.stride()[:3],
            Q=rows, HQ=hq, D=d, COLUMNS=d + LSE_COLUMNS, BLOCK_N=cut.n,
            BLOCK_S=min(16, triton.next_power_of_2(splits)), DEPENDENT=dependent, num_warps=4, **options,
        )  # fmt: skip
    return out


def cost(lens: Sequence[int], rows: int, hq: int, hkv: int, d: int, page_size: int, itemsize: int = 2) -> Cost:
    """Bytes and FLOPs of one call over sequences of these lengths."""
    return paged_prefill.cost([rows] * len(lens), lens, hq, hkv, d, page_size, itemsize)
