"""rms_norm_rope: the kernel, and the op's plain-torch CPU form, within a rounding of fp64; pages as store_kv's."""

from __future__ import annotations

import pytest
import torch
from fp64 import assert_close

from qwen3lab_kernels import rms_norm_rope as op
from qwen3lab_kernels.cost import Cost

EPS = 1e-6
MAX_POSITIONS = 20_000
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
SHAPES = [(1, 8, 8, 64), (3, 2, 1, 128), (2, 12, 3, 64), (5, 16, 2, 128), (2, 5, 1, 64)]  # T, Hq, Hkv, D


def table(device, dim):
    angles = torch.arange(MAX_POSITIONS).float()[:, None] / 1e6 ** (torch.arange(0, dim, 2) / dim)
    return torch.cat((angles.cos(), angles.sin()), -1).to(device)


def made(device, dtype, tokens, num_heads, num_kv_heads, dim):
    """The op's seven arguments: qkv with a row stride of its own and poison beside its rows, far positions."""
    torch.manual_seed(0)
    width = (num_heads + 2 * num_kv_heads) * dim
    beside = torch.full((tokens, width + 8), float("nan"), device=device, dtype=dtype)
    qkv = beside[:, :width].copy_(2 * torch.randn(tokens, width))
    weights = [(1 + 0.2 * torch.randn(dim, device=device)).to(dtype) for _ in "qk"]
    positions = torch.randint(0, MAX_POSITIONS, (tokens,), dtype=torch.int32, device=device)
    positions[-1] = MAX_POSITIONS - 1
    return qkv, *weights, EPS, positions, table(device, dim), num_kv_heads


def exact(qkv, q_weight, k_weight, eps, positions, cos_sin, num_kv_heads):
    """fp64, written apart from the reference: a rotation is a product of complex numbers."""
    dim = q_weight.shape[0]
    heads = qkv.double().unflatten(1, (-1, dim))
    q, k, _ = heads.split((heads.shape[1] - 2 * num_kv_heads, num_kv_heads, num_kv_heads), 1)
    turn = torch.complex(*cos_sin[positions.long()].double()[:, None].chunk(2, -1))
    results = []
    for x, weight in ((q, q_weight), (k, k_weight)):
        x = x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()
        turned = torch.complex(*x.chunk(2, -1)) * turn
        results.append(torch.cat((turned.real, turned.imag), -1))
    return results


def eager(qkv, q_weight, k_weight, eps, positions, cos_sin, num_kv_heads):
    """The chain a model without the op runs: a norm that rounds, and a rotation in the model's dtype."""
    dim = q_weight.shape[0]
    heads = qkv.unflatten(1, (-1, dim))
    q, k, _ = heads.split((heads.shape[1] - 2 * num_kv_heads, num_kv_heads, num_kv_heads), 1)
    cos, sin = (half.to(qkv.dtype) for half in cos_sin[positions.long()][:, None].chunk(2, -1))
    results = []
    for x, weight in ((q, q_weight), (k, k_weight)):
        a, b = torch.nn.functional.rms_norm(x, (dim,), weight, eps).chunk(2, -1)
        results.append(torch.cat((a * cos - b * sin, b * cos + a * sin), -1))
    return results


def assert_all_close(got, args):
    for one, chain, truth in zip(got, eager(*args), exact(*args), strict=True):
        assert one.is_contiguous()
        assert_close(one, truth, chain)


def pages(args, page_size, num_pages=4):
    """Poisoned pages, k's and v's in one tensor as some engines keep them."""
    qkv, dim, num_kv_heads = args[0], args[1].shape[0], args[6]
    shape = (num_pages, 2, page_size, num_kv_heads, dim)
    both = torch.full(shape, float("nan"), device=qkv.device, dtype=qkv.dtype)
    return both, both[:, 0], both[:, 1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernel_within_a_rounding_of_fp64(device, dtype, shape):
    args = made(device, dtype, *shape)
    before = args[0].clone()
    assert_all_close(op.launch(*args), args)
    assert torch.equal(args[0], before), "v and the rest of qkv are not touched"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_op_and_reference_within_a_rounding_of_fp64(device, dtype, shape):
    """On a CPU the op is plain torch; on a card it is the kernel."""
    args = made(device, dtype, *shape)
    assert_all_close(op.rms_norm_rope(*args), args)
    assert_all_close(op.unfused(*args), args)
    for spec, truth in zip(op.reference(*args), exact(*args), strict=True):
        assert spec.dtype == torch.float32
        assert torch.allclose(spec.double(), truth, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["kernel", "op"])
@pytest.mark.parametrize(
    ("shape", "page_size", "slots"),
    [
        ((5, 4, 4, 64), 16, [15, 16, 31, -1, 0]),  # the last of a page, the first of the next
        ((1, 8, 1, 128), 4, [15]),
        ((3, 6, 3, 128), 5, [-1, 19, 4]),
        ((2, 16, 8, 64), 3, [-1, -1]),
    ],
)
def test_k_and_v_go_to_their_slots_alone(device, form, shape, page_size, slots):
    args = made(device, torch.bfloat16, *shape)
    plain_q, plain_k = op.launch(*args)
    v = args[0].unflatten(1, (-1, shape[3]))[:, -shape[2] :]
    both, k_cache, v_cache = pages(args, page_size)
    expected = both.clone()
    for t, slot in enumerate(slots):
        if slot >= 0:
            expected[slot // page_size, 0, slot % page_size] = plain_k[t]
            expected[slot // page_size, 1, slot % page_size] = v[t]
    slot_mapping = torch.tensor(slots, dtype=torch.int32, device=device)
    if form == "kernel":
        q, k = op.launch(*args, (k_cache, v_cache, slot_mapping))
        assert k is None
    else:
        q = op.rms_norm_rope_store(*args, k_cache, v_cache, slot_mapping)
    near = {} if form == "kernel" else {"rtol": 2**-7, "atol": 2**-7}  # plain torch may round the other way
    assert torch.allclose(q, plain_q, **(near or {"rtol": 0, "atol": 0}))
    assert torch.allclose(both, expected, **(near or {"rtol": 0, "atol": 0}), equal_nan=True)
    assert torch.equal(both[:, 1].isnan(), expected[:, 1].isnan())


def test_out_may_be_given_and_positions_may_be_int64(device):
    args = made(device, torch.bfloat16, 3, 4, 2, 64)
    q, k = op.launch(*args)
    outs = torch.empty_like(q), torch.empty_like(k)
    got = op.launch(*args[:4], args[4].long(), *args[5:], out=outs)
    assert got[0] is outs[0] and got[1] is outs[1]
    assert torch.equal(outs[0], q) and torch.equal(outs[1], k)


def test_rows_and_pages_beyond_2_to_the_31(device):
    far = 2**31 + 64

    def apart(*shape):
        storage = torch.UntypedStorage(2 * (far + 1024), device=device)  # reserved, never touched: not torch.empty
        stride = (far, *[64] * (len(shape) - 2), 1)
        return torch.tensor([], dtype=torch.bfloat16, device=device).set_(storage, 0, shape, stride)

    near, *rest = made(device, torch.bfloat16, 2, 2, 1, 64)
    qkv, k_cache, v_cache = apart(2, 256), apart(2, 2, 1, 64), apart(2, 2, 1, 64)
    qkv.copy_(near)
    slots = torch.tensor([3, 0], dtype=torch.int32, device=device)
    q, k = op.launch(near, *rest)
    got, _ = op.launch(qkv, *rest, (k_cache, v_cache, slots))
    assert torch.equal(got, q)
    assert torch.equal(k_cache[1, 1], k[0]) and torch.equal(k_cache[0, 0], k[1])
    assert torch.equal(v_cache[1, 1, 0], near[0, 192:]) and torch.equal(v_cache[0, 0, 0], near[1, 192:])


def test_the_ops_keep_the_rules_of_the_library(device):
    args = made(device, torch.float32, 3, 4, 2, 64)
    torch.library.opcheck(op.rms_norm_rope, args)
    _, k_cache, v_cache = pages(args, 4)
    k_cache.zero_(), v_cache.zero_()  # opcheck compares what NaN would never equal
    slots = torch.tensor([3, -1, 4], dtype=torch.int32, device=device)
    torch.library.opcheck(op.rms_norm_rope_store, (*args, k_cache.contiguous(), v_cache.contiguous(), slots))


def test_the_gate_says_why(device, monkeypatch):
    assert op.gate(128, torch.bfloat16, device) is None
    assert "head_dim=96, supported 64|128" in op.gate(96, torch.bfloat16, device)
    assert "torch.float64" in op.gate(64, torch.float64, device)
    assert "rotary_dim=32" in op.gate(64, torch.float32, device, rotary_dim=32)
    monkeypatch.setattr(op.triton.knobs.runtime, "interpret", False)
    assert "device cpu: the kernel needs a CUDA device" in op.gate(64, torch.float32, torch.device("cpu"))


def test_what_the_gate_turns_away_runs_unfused(device):
    args = made(device, torch.bfloat16, 3, 2, 1, 96)
    both, k_cache, v_cache = pages(args, 4)
    q, k = op.unfused(*args, (k_cache, v_cache, torch.tensor([5, -1, 0], dtype=torch.int32, device=device)))
    assert_all_close((q, k), args)
    assert torch.equal(k_cache[1, 1], k[0]) and torch.equal(k_cache[0, 0], k[2])
    assert (~both.isnan()).sum() == 2 * 2 * 96


def test_what_does_not_fit_is_named(device):
    good = made(device, torch.bfloat16, 2, 2, 1, 64)
    qkv, wq, _, _, positions, cos_sin, _ = good
    names = ("qkv", "q_weight", "k_weight", "eps", "positions", "cos_sin", "num_kv_heads")
    _, k_cache, v_cache = pages(good, 4)
    slots = torch.zeros(2, dtype=torch.int32, device=device)
    for change, told in [
        ({"q_weight": wq[:32]}, "head_dim=32, supported 64|128; use rms_norm_rope.unfused"),
        ({"qkv": qkv[:, :200]}, r"qkv is \(2, 200\)"),
        ({"qkv": qkv.t().contiguous().t()}, "last stride 1"),
        ({"num_kv_heads": 2}, "num_kv_heads=2 leaves 0 q heads of qkv's 4"),
        ({"k_weight": wq.float()}, "k_weight is .* torch.float32"),
        ({"positions": positions[:1]}, r"positions is \(1,\)"),
        ({"positions": positions.float()}, "torch.int32 or torch.int64"),
        ({"cos_sin": cos_sin[:, :32]}, r"cos_sin is \(20000, 32\)"),
        ({"cache": (k_cache, v_cache, slots.long())}, "slot_mapping is .* torch.int64"),
        ({"cache": (k_cache.float(), v_cache, slots)}, "k_cache is torch.float32"),
        ({"out": (torch.empty(2, 2, 64, device=device), None)}, "out's q is .* torch.float32"),
        ({"out": (torch.empty(2, 2, 64, device=device).bfloat16(), None)}, "out's k is None"),
    ]:
        with pytest.raises(ValueError, match="rms_norm_rope: .*" + told):
            op.launch(**(dict(zip(names, good, strict=True)) | change))


def test_no_tokens(device):
    qkv, wq, wk, eps, positions, *rest = made(device, torch.bfloat16, 1, 2, 1, 64)
    q, k = op.launch(qkv[:0], wq, wk, eps, positions[:0], *rest)
    assert q.shape == (0, 2, 64) and k.shape == (0, 1, 64)


def test_the_block_is_a_function_of_the_size_alone():
    assert op.choose_block(1, 16, 128) == (4, 1)
    assert op.choose_block(8192, 16, 128) == (8, 2)
    assert op.choose_block(1, 16, 64) == (8, 1)
    assert op.choose_block(8192, 3, 128) == (4, 1)


def test_cost_counts_each_byte_once():
    assert op.cost(10, 16, 8, 128) == Cost(2 * 10 * 24 * 128 + 512 + 10 * 516, 2 * 10 * 24 * 128, 7 * 10 * 24 * 128)
    assert op.cost(10, 16, 8, 128, store=True).bytes_written == 2 * 10 * 32 * 128
