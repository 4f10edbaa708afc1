"""paged_prefill: within a rounding of fp64 for prompts and chunks of any length, whatever lies beside their keys."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from fp64 import assert_close
from made_pages import cached, eager

from qwen3lab_kernels import paged_decode, paged_prefill
from qwen3lab_kernels.paged_prefill import Cut

NAN = float("nan")
SMALL = Cut(m=32, n=32, warps=4, stages=2, apart=True)  # few queries and keys a tile: short rows have many tiles


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def made(device, dtype, rows, *, hq=4, hkv=2, d=64, page_size=16, beside=0):
    """q, k, v, bounds, lengths, table of rows (queries, history)."""
    lens = [t + history for t, history in rows]
    k, v, table = cached(device, dtype, lens, page_size, hkv, d, beside=beside)
    bounds = torch.tensor([0, *accumulate(t for t, _ in rows)], dtype=torch.int32, device=device)
    q = torch.randn(int(bounds[-1]), hq + beside, d, device=device).to(dtype)[:, :hq]
    return q, k, v, bounds, torch.tensor(lens, dtype=torch.int32, device=device), table


def check(device, dtype, rows, *, cut=SMALL, out=None, max_query_len=None, **shape):
    """One call against fp64: no further from it than torch's chain is, and one rounding."""
    q, k, v, bounds, lengths, table = made(device, dtype, rows, **shape)
    longest = max(t for t, _ in rows) if max_query_len is None else max_query_len
    got = paged_prefill.paged_prefill(q, k, v, bounds, lengths, table, max_query_len=longest, cut=cut, out=out)
    exact = paged_prefill.reference(q.double(), k.double(), v.double(), bounds, lengths, table)
    assert_close(got, exact, eager(q, k, v, bounds.tolist(), lengths.tolist(), table))
    return got


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("d", "page_size"), [(64, 16), (128, 64), (64, 256)])
def test_every_dtype_head_and_page_size(device, dtype, d, page_size):
    check(device, dtype, [(40, 0), (7, 50), (1, 90)], cut=None, d=d, page_size=page_size, beside=1)


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("page_size", [16, 64])
def test_prompts_and_chunks_at_the_edges_of_pages_and_tiles(device, page_size, apart):
    """Lengths about a page; histories that end before, at and after a tile of 32 keys; queries about a tile of 16."""
    edges = [(page_size + n, 0) for n in (-1, 0, 1)]
    chunks = [(t, history) for t in (1, 16, 17) for history in (31, 32, 33)]
    cut = Cut(SMALL.m, SMALL.n, 4, 2, apart)
    check(device, torch.float32, edges + chunks, page_size=page_size, hq=2, hkv=1, cut=cut)


@pytest.mark.parametrize("group", [1, 2, 4, 5, 8])
def test_groups_of_heads(device, group):
    """A tile of 32 rows is 32 queries of one head, or 6.4 queries of five: the second begins inside query 6.

    That query may be the last (7), and its keys may end one before a full tile of keys (a history of 24).
    """
    check(device, torch.bfloat16, [(19, 0), (3, 40), (7, 24)], hq=2 * group)


def test_one_token_and_nine(device):
    check(device, torch.bfloat16, [(1, 0), (9, 0), (9, 70)], cut=None)


def test_a_long_history_beside_a_fresh_token(device):
    check(device, torch.bfloat16, [(1, 0), (2, 4998)], page_size=256, hq=2, hkv=1, cut=None)


def test_rows_without_queries_and_tokens_of_no_row(device):
    """A row that has nothing this step, a launch sized for more, and an out whose other heads are somebody else's."""
    beside = torch.full((24, 6, 64), NAN, device=device)
    check(device, torch.float32, [(0, 30), (20, 3), (0, 0), (4, 0)], out=beside[:, :4], max_query_len=24)
    assert beside[:, 4:].isnan().all(), "wrote beside its heads"

    q, k, v, bounds, lengths, table = made(device, torch.float32, [(6, 0), (5, 0)])
    out = torch.full_like(q, NAN)
    paged_prefill.paged_prefill(q, k, v, bounds[:2], lengths[:1], table[:1], max_query_len=6, out=out)
    assert not out[:6].isnan().any()
    assert out[6:].isnan().all(), "wrote tokens that belong to no row"


def test_nothing_to_do(device):
    q, k, v, bounds, lengths, table = made(device, torch.float32, [(0, 20)])
    assert paged_prefill.paged_prefill(q, k, v, bounds, lengths, table, max_query_len=0).shape == (0, 4, 64)
    nobody = (bounds[:1], lengths[:0], table[:0])
    assert paged_prefill.paged_prefill(q, k, v, *nobody, max_query_len=0).shape == (0, 4, 64)


def test_it_agrees_with_paged_decode_where_all_rows_have_as_many_queries(device):
    q, k, v, bounds, lengths, table = made(device, torch.float32, [(3, 20), (3, 61)])
    varlen = paged_prefill.paged_prefill(q, k, v, bounds, lengths, table, max_query_len=3)
    paged = paged_decode.paged_decode(q.view(2, 3, 4, 64), k, v, table, lengths, num_splits=2)
    assert torch.allclose(varlen.view(2, 3, 4, 64), paged, atol=1e-5)


def test_a_scale_of_ones_own(device):
    args = made(device, torch.float32, [(5, 4)])
    out = paged_prefill.paged_prefill(*args, max_query_len=5, scale=0.02)
    assert torch.allclose(out, paged_prefill.reference(*args, scale=0.02), atol=1e-5)


def test_what_does_not_fit_is_named(device):
    q, k, v, bounds, lengths, table = made(device, torch.float32, [(5, 4), (3, 0)])
    call = paged_prefill.paged_prefill
    for wrong, told in [
        (lambda: call(q[None], k, v, bounds, lengths, table, max_query_len=5), r"wanted \[T, Hq, D\]"),
        (lambda: call(q[..., :32], k, v, bounds, lengths, table, max_query_len=5), r"wanted both \[P, S, Hkv, 32\]"),
        (
            lambda: call(q[..., :32], k[..., :32], v[..., :32], bounds, lengths, table, max_query_len=5),
            "paged_prefill: head_dim=32",
        ),
        (lambda: call(q, k, v, bounds[:2], lengths, table, max_query_len=5), r"cu_seqlens_q is \(2,\)"),
        (lambda: call(q, k, v, bounds.long(), lengths, table, max_query_len=5), "torch.int64"),
        (lambda: call(q, k, v, bounds.repeat(2)[::2], lengths, table, max_query_len=5), "it must be contiguous"),
        (lambda: call(q, k, v, bounds, lengths, table, max_query_len=9), "max_query_len=9, wanted 0 to T=8"),
        (lambda: call(q, k, v, bounds, lengths, table, max_query_len=5, out=q[:2]), r"out is \(2, 4, 64\)"),
    ]:
        with pytest.raises(ValueError, match=told):
            wrong()


def test_the_cut_is_a_function_of_the_size_alone():
    for rows in (1, 16, 65, 10**6):
        for itemsize in (2, 4):
            cut = paged_prefill.choose_cut(rows, itemsize)
            assert cut == paged_prefill.choose_cut(rows, itemsize)
            assert cut.m & (cut.m - 1) == cut.n & (cut.n - 1) == 0


def test_cost_counts_what_the_causal_mask_leaves():
    c = paged_prefill.cost([4, 1], [4, 10], hq=16, hkv=8, d=128, page_size=16)
    assert c.flops == 4 * 16 * 128 * (1 + 2 + 3 + 4 + 10)
    assert c.bytes_written == 2 * 5 * 16 * 128
    assert c.bytes_read == 2 * (2 * 14 * 8 * 128 + 5 * 16 * 128) + 4 * (2 + 2)
