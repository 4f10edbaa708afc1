"""paged_decode: within a rounding of fp64 over shuffled pages, whatever lies beside the keys; any split, any length."""

from __future__ import annotations

import mmap

import pytest
import torch
from fp64 import assert_close
from hypothesis import given
from hypothesis import strategies as st
from made_pages import cached, eager

from qwen3lab_kernels import paged_decode
from qwen3lab_kernels.paged_decode import MAX_SPLITS, choose_cut, choose_splits, workspace_shape
from qwen3lab_kernels.paged_prefill import Cut

NAN = float("nan")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def check(device, dtype, lens, *, rows=1, hq=4, hkv=2, d=64, page_size=16, splits=1, apart=None, beside=0, **options):
    """One call against fp64. Its keys a tile are few, so that short sequences have many tiles."""
    k, v, table = cached(device, dtype, lens, page_size, hkv, d, beside=beside)
    q = torch.randn(len(lens), rows, hq + beside, d, device=device).to(dtype)[:, :, :hq]
    lengths = torch.tensor(lens, dtype=torch.int32, device=device)
    if apart is not None:
        options["cut"] = Cut(choose_cut(rows * hq // hkv, 2, 1).m, 32, 4, 2, apart)
    out = paged_decode.paged_decode(q, k, v, table, lengths, num_splits=splits, **options)
    exact = paged_decode.reference(q.double(), k.double(), v.double(), table, lengths)
    bounds = range(0, rows * len(lens) + 1, rows)
    assert_close(out.flatten(0, 1), exact.flatten(0, 1), eager(q.flatten(0, 1), k, v, bounds, lens, table))
    return out, exact


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("d", "page_size", "splits"), [(64, 16, 1), (128, 64, 3), (64, 256, 2)])
def test_every_dtype_head_and_page_size(device, dtype, d, page_size, splits):
    check(device, dtype, [1, 77, 300], d=d, page_size=page_size, splits=splits, beside=1)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("page_size", [16, 64])
def test_lengths_at_the_edges_of_pages_tiles_and_splits(device, page_size, splits):
    lens = [1, page_size - 1, page_size, page_size + 1, 95, 96, 97]  # 96: three splits of a tile of 32 each
    for apart in (False, True):
        check(device, torch.float32, lens, page_size=page_size, splits=splits, apart=apart, hq=2, hkv=1)


@pytest.mark.parametrize("group", [1, 2, 4, 5, 8])
def test_groups_of_heads(device, group):
    check(device, torch.bfloat16, [37, 130], hq=2 * group, splits=2)


@pytest.mark.parametrize("rows", range(1, 10))
def test_query_rows_are_causal_among_themselves(device, rows):
    """Also where rows meet in a tile or a split of their own: the last of 70 keys are past two tiles of 32."""
    for apart in (False, True):
        check(device, torch.bfloat16, [rows, 65, 70], rows=rows, splits=3, apart=apart, hq=2, hkv=1)


def test_eight_heads_and_nine_rows_fill_the_largest_matrix(device):
    check(device, torch.bfloat16, [9, 90], rows=9, hq=8, hkv=1, splits=2)


def test_rows_before_the_first_key_are_zero(device):
    """Fewer keys than rows: the first rows see nothing. No scheduler asks for it, and it must not be NaN."""
    for splits in (1, 2):
        out, _ = check(device, torch.float32, [3], rows=5, splits=splits)
        assert (out[0, :2] == 0).all()
        assert (out[0, 2:] != 0).any()


def test_a_short_and_a_long_sequence_share_a_split_count(device):
    check(device, torch.bfloat16, [1, 5000], page_size=256, splits=7, hq=2, hkv=1)


@pytest.mark.parametrize("splits", [1, 25])
def test_padding_rows_and_empty_splits_weigh_nothing(device, splits):
    """Length 0 reads not even its block table; 40 keys leave 23 of 25 splits empty; 700 take combine two rounds."""
    out, _ = check(device, torch.float32, [0, 40, 0, 700], splits=splits, apart=False, hq=8, hkv=1)
    assert (out[[0, 2]] == 0).all()
    out, _ = check(device, torch.float32, [0, 0], splits=splits)
    assert (out == 0).all()


def test_a_captured_call_is_right_when_lengths_change(device):
    """The launch's numbers stay, one workspace serves all: what an earlier length left there must not be read."""
    k, v, table = cached(device, torch.float32, [300], 16, 2, 64)
    q = torch.randn(1, 1, 4, 64, device=device)
    lengths = torch.zeros(1, dtype=torch.int32, device=device)
    workspace = torch.full(workspace_shape(1, 6, 2, 4, 64), NAN, device=device)  # larger than is needed
    out = torch.full((1, 1, 6, 64), NAN, device=device)[:, :, :4]
    for n in (300, 17, 299, 0, 1, 64):
        lengths.fill_(n)
        given_out = paged_decode.paged_decode(
            q, k, v, table, lengths, num_splits=5, max_len=300, out=out, workspace=workspace
        )
        assert given_out is out
        assert torch.allclose(out, paged_decode.reference(q, k, v, table, lengths), atol=1e-5)
        workspace.nan_to_num_(nan=1e6)


def test_splits_are_chosen_where_none_are_given(device):
    k, v, table = cached(device, torch.float32, [600], 16, 1, 64)
    q, lengths = torch.randn(1, 1, 2, 64, device=device), torch.tensor([600], dtype=torch.int32, device=device)
    exact = paged_decode.reference(q, k, v, table, lengths)
    assert torch.allclose(paged_decode.paged_decode(q, k, v, table, lengths), exact, atol=1e-5)
    ones = paged_decode.paged_decode(q, k, v, table, lengths, scale=0.02)
    assert torch.allclose(ones, paged_decode.reference(q, k, v, table, lengths, scale=0.02), atol=1e-5)


def test_the_strided_view_of_a_cache_of_pairs(device):
    """One tensor [2, P, Hkv, S, D] a layer, tokens inside heads: any strides will do."""
    both = torch.randn(2, 5, 2, 16, 64, device=device)
    k, v = both.transpose(2, 3)
    table = torch.tensor([[4, 1, 3]], dtype=torch.int32, device=device)
    q, lengths = torch.randn(1, 2, 4, 64, device=device), torch.tensor([41], dtype=torch.int32, device=device)
    for splits in (1, 2):
        out = paged_decode.paged_decode(q, k, v, table, lengths, num_splits=splits, cut=Cut(16, 16, 4, 2, True))
        assert torch.allclose(out, paged_decode.reference(q, k, v, table, lengths), atol=1e-5)


def far_pages(device, pages, page_size, d, stride):
    """[pages, page_size, 1, d] fp32, `stride` elements from page to page, over memory that is mapped but untouched."""
    elements = (pages - 1) * stride + page_size * d
    try:
        if device.type == "cuda":
            flat = torch.zeros(elements, device=device)
        else:
            flat = torch.frombuffer(mmap.mmap(-1, 4 * elements), dtype=torch.float32)
    except (OSError, ValueError, torch.OutOfMemoryError) as error:
        pytest.skip(f"needs {4 * elements / 2**30:.0f} GiB of address space: {error}")
    return flat.as_strided((pages, page_size, 1, d), (stride, d, d, 1))


@pytest.mark.parametrize("page_size", [16, 64])
def test_offsets_beyond_2_to_31_elements(device, page_size):
    """Three pages 1.2·10⁹ elements apart: the last begins beyond 2³¹, where 32 bits would wrap to another."""
    k = far_pages(device, 3, page_size, 64, 1_200_000_000)
    v = torch.randn(3, page_size, 1, 64, device=device)
    k[2], k[0] = torch.randn(page_size, 1, 64), 7.0
    table = torch.tensor([[2]], dtype=torch.int32, device=device)
    q, lengths = (
        torch.randn(1, 1, 2, 64, device=device),
        torch.tensor([page_size - 1], dtype=torch.int32, device=device),
    )
    for keys, values in ((k, v), (v, k)):
        out = paged_decode.paged_decode(q, keys, values, table, lengths, num_splits=1)
        assert torch.allclose(out, paged_decode.reference(q, keys, values, table, lengths), atol=1e-5)


def test_what_does_not_fit_is_named(device):
    k, v, table = cached(device, torch.float32, [20, 20], 16, 2, 64)
    q, lengths = torch.randn(2, 1, 4, 64, device=device), torch.tensor([20, 20], dtype=torch.int32, device=device)
    call = paged_decode.paged_decode
    short = torch.empty(3, device=device)
    for wrong, told in [
        (lambda: call(q[0], k, v, table, lengths), r"q \(1, 4, 64\); wanted \[B, Q, Hq, D\]"),
        (lambda: call(q[..., :32], k[..., :32], v[..., :32], table, lengths), "head_dim=32, supported"),
        (lambda: call(q, k, v[:1], table, lengths), "wanted both"),
        (lambda: call(q, k[:, :8], v[:, :8], table, lengths), "page_size=8, supported"),
        (lambda: call(q[:, :, :3], k, v, table, lengths), "3 query heads over 2 KV heads"),
        (lambda: call(q.half(), k, v, table, lengths), "q torch.float16, k torch.float32"),
        (lambda: call(q, k, v, table.long(), lengths), "block_table is torch.int64; it must be int32"),
        (lambda: call(q, k, v, table, lengths.long()), "seq_lens is torch.int64; it must be int32"),
        (lambda: call(q, k, v, table, lengths[:1]), r"wanted \[B, N\] and \[B\]"),
        (lambda: call(q[:1], k, v, table, lengths), "q has 1 sequences, block_table 2"),
        (lambda: call(q.mT.contiguous().mT, k, v, table, lengths), "q has strides"),
        (lambda: call(q.expand(2, 80, 4, 64), k, v, table, lengths), "80 query rows × 2 heads"),
        (lambda: call(q, k, v, table, lengths, num_splits=MAX_SPLITS + 1), f"supported 1 to {MAX_SPLITS}"),
        (lambda: call(q, k, v, table, lengths, out=q[:1]), r"out is \(1, 1, 4, 64\)"),
        (lambda: call(q, k, v, table, lengths, num_splits=2, workspace=short), "workspace is"),
    ]:
        with pytest.raises(ValueError, match=told):
            wrong()


def test_no_sequences_launch_nothing(device):
    k, v, table = cached(device, torch.float32, [20], 16, 2, 64)
    lengths = torch.zeros(0, dtype=torch.int32, device=device)
    assert paged_decode.paged_decode(k.new_zeros(0, 1, 4, 64), k, v, table[:0], lengths).shape == (0, 1, 4, 64)


@given(st.integers(1, 1024), st.sampled_from([1, 2, 4, 8, 16]), st.integers(0, 2**17), st.integers(1, 160))
def test_the_number_of_splits(b, hkv, max_len, sms):
    splits = choose_splits(b, hkv, max_len, sms)
    assert splits == choose_splits(b, hkv, max_len, sms)
    assert 1 <= splits <= MAX_SPLITS
    assert splits <= max(1, -(-max_len // paged_decode.KEYS_WORTH_A_SPLIT))
    assert splits <= choose_splits(b, hkv, 2 * max_len, sms), "more keys never want fewer programs"
    if b * hkv >= 10 * paged_decode.PROGRAMS_PER_SM * sms:
        assert splits == 1, "the sequences alone fill the card"


def test_the_number_of_splits_on_an_h200():
    assert choose_splits(1, 8, 256, 132) == 1
    assert choose_splits(1, 8, 65536, 132) * 8 >= 0.9 * 2 * 132
    assert choose_splits(256, 8, 16384, 132) == 1


def test_cost_counts_every_key_once():
    c = paged_decode.cost([100, 28], rows=2, hq=16, hkv=8, d=128, page_size=16)
    pages_and_lengths = 4 * (7 + 2 + 2)
    assert c.bytes_read == 2 * (2 * 128 * 8 * 128) + 2 * (2 * 2 * 16 * 128) + pages_and_lengths
    assert c.bytes_written == 2 * (2 * 2 * 16 * 128)
    assert c.flops == 4 * 16 * 128 * (99 + 100 + 27 + 28)
