"""decode_attention: rms_norm_rope, store and paged_decode in one launch; the cache changes by the new tokens alone."""

from __future__ import annotations

import pytest
import torch
from fp64 import assert_close
from made_pages import cached, eager

from qwen3lab_kernels import decode_attention as op
from qwen3lab_kernels import paged_decode, rms_norm_rope
from qwen3lab_kernels.paged_prefill import Cut

NAN = float("nan")
EPS = 1e-6
POSITIONS = 8192
FEW_KEYS = Cut(m=16, n=16, warps=4, stages=2, apart=False)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def made(device, dtype, lens, *, hq=4, hkv=2, d=64, page_size=16, beside=0):
    """The op's arguments for rows of these lengths, the new token included; 0 is a padding row. New slots are NaN."""
    k, v, table = cached(device, dtype, lens, page_size, hkv, d, beside=beside)
    lengths = torch.tensor(lens, dtype=torch.int32, device=device)
    slots = torch.full_like(lengths, -1)
    for b, n in enumerate(lens):
        if n:
            page, offset = int(table[b, (n - 1) // page_size]), (n - 1) % page_size
            k[page, offset] = v[page, offset] = NAN
            slots[b] = page * page_size + offset
    width = (hq + 2 * hkv) * d
    wide = torch.full((len(lens), width + 8), NAN, device=device, dtype=dtype)
    qkv = wide[:, :width].copy_(2 * torch.randn(len(lens), width))
    weights = [(1 + 0.2 * torch.randn(d, device=device)).to(dtype) for _ in "qk"]
    angles = torch.arange(POSITIONS).float()[:, None] / 1e6 ** (torch.arange(0, d, 2) / d)
    cos_sin = torch.cat((angles.cos(), angles.sin()), -1).to(device)
    positions = (lengths - 1).clamp(min=0)
    return qkv, *weights, EPS, positions, cos_sin, k, v, slots, table, lengths


def in_double(args):
    floats = (0, 1, 2, 6, 7)
    return [x.double() if i in floats else x for i, x in enumerate(args)]


def check(device, dtype, lens, *, splits=1, apart=None, **options):
    """One call against fp64, and the cache against the chain's, everywhere."""
    shape = {name: options.pop(name) for name in ("hq", "hkv", "d", "page_size", "beside") if name in options}
    args = made(device, dtype, lens, **shape)
    k, v, slots, table = args[6:10]
    if apart is not None:
        options["cut"] = Cut(m=16, n=32, warps=4, stages=2, apart=apart)
    exact = op.reference(*in_double(args))
    k_chain, v_chain = k.clone(), v.clone()
    q, _ = rms_norm_rope.unfused(*args[:6], k.shape[2], (k_chain, v_chain, slots))
    out = op.decode_attention(*args, num_splits=splits, **options)
    assert_close(out, exact, eager(q, k_chain, v_chain, range(len(lens) + 1), lens, table))
    torch.testing.assert_close(k, k_chain, rtol=2 * torch.finfo(dtype).eps, atol=1e-6, equal_nan=True)
    assert torch.equal(v.nan_to_num(7.0), v_chain.nan_to_num(7.0))
    return out


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("d", "page_size", "splits"), [(64, 16, 1), (128, 64, 3), (64, 256, 2)])
def test_every_dtype_head_and_page_size(device, dtype, d, page_size, splits):
    check(device, dtype, [1, 77, 300], d=d, page_size=page_size, splits=splits, beside=1)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("page_size", [16, 64])
def test_lengths_at_the_edges_of_pages_tiles_and_splits(device, page_size, splits):
    """The new token first on its page, alone in the cache, and just past a tile or a split of the old keys."""
    lens = [1, 2, page_size, page_size + 1, page_size + 2, 96, 97, 98]
    for apart in (False, True):
        check(device, torch.float32, lens, page_size=page_size, splits=splits, apart=apart, hq=2, hkv=1)


@pytest.mark.parametrize("group", [1, 2, 4, 5, 8])
def test_groups_of_heads(device, group):
    check(device, torch.bfloat16, [37, 130], hq=2 * group, splits=2)


@pytest.mark.parametrize("splits", [1, 25])
def test_padding_rows_and_empty_splits_weigh_nothing(device, splits):
    out = check(device, torch.float32, [0, 40, 0, 700], splits=splits, hq=8, hkv=1)
    assert (out[[0, 2]] == 0).all()
    assert (check(device, torch.float32, [0, 0], splits=splits) == 0).all()


def test_a_captured_call_is_right_when_lengths_change(device):
    """One workspace and one counter serve every launch; what an earlier one left there must not be read."""
    workspace = torch.full(paged_decode.workspace_shape(1, 6, 1, 4, 64), NAN, device=device)
    count = op.counter(1, 2, device)
    for n in (300, 17, 299, 0, 1, 64):
        args = made(device, torch.float32, [n])
        exact = op.reference(*args)
        out = torch.full((1, 6, 64), NAN, device=device)[:, :4]
        options = {"num_splits": 5, "max_len": 300, "workspace": workspace, "count": count, "cut": FEW_KEYS}
        assert op.decode_attention(*args, out=out, **options) is out
        assert torch.allclose(out, exact, atol=1e-5)
        assert not count.any(), "left as it was found"
        workspace.nan_to_num_(nan=1e6)


def test_splits_are_chosen_where_none_are_given(device):
    args = made(device, torch.float32, [600])
    exact = op.reference(*args)
    assert torch.allclose(op.decode_attention(*args), exact, atol=1e-5)
    assert op.choose_splits(1, 8, 256, 132) == 4
    assert op.choose_splits(256, 8, 16384, 132) == 1


def test_what_does_not_fit_is_named(device):
    args = made(device, torch.float32, [20, 20])

    def call(at=None, value=None, **options):
        given = list(args)
        if at is not None:
            given[at] = value
        return op.decode_attention(*given, **options)

    for wrong, told in [
        (lambda: call(0, args[0][:, :-64]), "query heads over 2 KV heads"),
        (lambda: call(1, args[1][:32]), "qkv is|head_dim=32"),
        (lambda: call(6, args[6].half()), "float16"),
        (lambda: call(8, args[8].long()), "slot_mapping"),
        (lambda: call(9, args[9][:1]), r"wanted \[B, N\] and \[B\]"),
        (lambda: call(10, args[10].long()), "seq_lens is torch.int64"),
        (lambda: call(num_splits=0), "num_splits=0, supported 1 to"),
        (lambda: call(out=torch.empty(2, 3, 64, device=device)), "3 query heads over 2"),
        (lambda: call(num_splits=2, count=torch.zeros(1, dtype=torch.int32, device=device)), "count is"),
        (lambda: call(num_splits=2, workspace=torch.empty(3, device=device)), "workspace is"),
    ]:
        with pytest.raises(ValueError, match=told):
            wrong()


def test_cost_is_the_chains_less_what_stays_inside():
    c = op.cost([100, 28], hq=16, hkv=8, d=128, page_size=16)
    turned = rms_norm_rope.cost(2, 16, 8, 128, store=True)
    attended = paged_decode.cost([100, 28], 1, 16, 8, 128, 16)
    assert c.flops == turned.flops + attended.flops
    assert turned.bytes_moved + attended.bytes_moved - c.bytes_moved == 2 * 2 * 128 * (16 + 8 + 8 + 16)
