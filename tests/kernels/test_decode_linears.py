"""The decode linears: within a rounding of fp64, in every number of rows, with sizes that no tile divides."""

from __future__ import annotations

import pytest
import torch
from fp64 import assert_close

from qwen3lab_kernels import linear_residual, lm_head_argmax, norm_gate_up_silu, norm_linear
from qwen3lab_kernels.decode_product import Tile, choose_tile
from qwen3lab_kernels.dependent import dependent_launch

EPS = 1e-6
SHAPES = [(1, 48, 64), (1, 33, 200), (2, 33, 200), (5, 96, 320), (16, 70, 513), (1, 10, 2500)]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def made(device, dtype, rows, n, k):
    """x with a row stride of its own, norm, weight: values at which a sum is of order one."""
    x = torch.randn(rows, k + 8, device=device).to(dtype)[:, :k]
    return x, (1 + 0.1 * torch.randn(k, device=device)).to(dtype), (torch.randn(n, k, device=device) / k**0.5).to(dtype)


def normed(x, norm):
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * norm.double()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("rows", "n", "k"), SHAPES)
def test_norm_linear(device, dtype, rows, n, k):
    x, norm, w = made(device, dtype, rows, n, k)
    exact = normed(x, norm) @ w.double().t()
    eager = torch.nn.functional.linear(torch.nn.functional.rms_norm(x, (k,), norm, EPS), w)
    assert_close(norm_linear.norm_linear(x, norm, w, EPS), exact, eager)
    assert torch.allclose(norm_linear.reference(x, norm, w, EPS).double(), exact, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("rows", "n", "k"), SHAPES)
def test_linear_residual(device, dtype, rows, n, k):
    x, _, w = made(device, dtype, rows, n, k)
    beside = torch.full((rows, n + 3), float("nan"), device=device, dtype=dtype)
    residual = beside[:, :n].copy_(torch.randn(rows, n))
    before = residual.clone()
    exact = before.double() + x.double() @ w.double().t()
    out = linear_residual.linear_residual(x, w, residual)
    assert out is residual
    assert_close(out, exact, before + torch.nn.functional.linear(x, w))
    assert beside[:, n:].isnan().all(), "wrote beside its rows"
    assert torch.allclose(linear_residual.reference(x, w, before).double(), exact, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("rows", "n", "k"), SHAPES)
def test_norm_gate_up_silu(device, dtype, rows, n, k):
    x, norm, w = made(device, dtype, rows, 2 * n, k)
    gate, up = (normed(x, norm) @ w.double().t()).chunk(2, -1)
    exact = torch.nn.functional.silu(gate) * up
    g, u = torch.nn.functional.linear(torch.nn.functional.rms_norm(x, (k,), norm, EPS), w).chunk(2, -1)
    eager = torch.nn.functional.silu(g) * u
    assert_close(norm_gate_up_silu.norm_gate_up_silu(x, norm, w, EPS), exact, eager)
    assert torch.allclose(norm_gate_up_silu.reference(x, norm, w, EPS).double(), exact, atol=1e-4)


@pytest.mark.parametrize(("rows", "n", "k"), SHAPES)
def test_lm_head_argmax(device, rows, n, k):
    x, norm, w = made(device, torch.float32, rows, n, k)
    assert (
        lm_head_argmax.lm_head_argmax(x, norm, w, EPS).tolist()
        == (normed(x, norm) @ w.double().t()).argmax(-1).tolist()
    )


@pytest.mark.parametrize("rows", [1, 3])
def test_the_head_takes_the_lowest_of_equals_across_tiles(device, rows):
    x, norm, w = made(device, torch.bfloat16, rows, 200, 64)
    w[150] = w[77] = w[11] = 3 * x[0]
    out = lm_head_argmax.lm_head_argmax(x, norm, w, EPS, tile=Tile(16, 64, 1))
    assert out[0] == 11
    assert out.tolist() == lm_head_argmax.reference(x, norm, w, EPS).tolist()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_row_with_logits_that_are_not_finite_says_so_and_no_other(device, value):
    x, norm, w = made(device, torch.float32, 3, 70, 64)
    x[1, 5] = value
    out = lm_head_argmax.lm_head_argmax(x, norm, w, EPS)
    assert out[1] == lm_head_argmax.NOT_FINITE
    assert out[[0, 2]].min() >= 0
    assert out.tolist() == lm_head_argmax.reference(x, norm, w, EPS).tolist()


def test_what_does_not_fit_is_named(device):
    x, norm, w = made(device, torch.float32, 2, 8, 64)
    for call, told in [
        (lambda: norm_linear.norm_linear(x[:, :32], norm, w, EPS), r"x \(2, 32\), weight \(8, 64\)"),
        (lambda: norm_linear.norm_linear(torch.cat([x] * 9), norm, w, EPS), "18 rows, supported 1 to 16"),
        (lambda: norm_linear.norm_linear(x.half(), norm, w, EPS), "x torch.float16, weight torch.float32"),
        (lambda: norm_linear.norm_linear(x, norm[:9], w, EPS), r"norm \(9,\), wanted \[64\]"),
        (lambda: norm_linear.norm_linear(x.t().contiguous().t(), norm, w, EPS), "its last must be 1"),
        (lambda: linear_residual.linear_residual(x, w.t().contiguous().t(), x), "weight has strides"),
        (lambda: linear_residual.linear_residual(x, w, x), r"residual is \(2, 64\)"),
        (lambda: norm_gate_up_silu.norm_gate_up_silu(x, norm, w[:7], EPS), "wanted an even number"),
        (lambda: lm_head_argmax.lm_head_argmax(x, norm, w, EPS, out=x[:, 0]), "wanted \\[2\\] int64"),
    ]:
        with pytest.raises(ValueError, match=told):
            call()


def test_the_cut_is_a_function_of_the_size_alone():
    assert choose_tile(1, 4096, 1024) == choose_tile(1, 4096, 1024)
    for rows in (1, 2, 16):
        for k in (64, 1024, 3072, 6144):
            tile = choose_tile(rows, 4096, k)
            assert tile.k & (tile.k - 1) == tile.n & (tile.n - 1) == 0


def test_cost_counts_the_weight_once():
    c = norm_linear.cost(rows=2, n=4096, k=1024)
    assert (c.bytes_read, c.bytes_written, c.flops) == (
        2 * (4096 * 1024 + 2 * 1024 + 1024),
        2 * 2 * 4096,
        4 * 4096 * 1024,
    )
    assert linear_residual.cost(1, 8, 16).bytes_moved == 2 * (8 * 16 + 16 + 8 + 8)
    assert norm_gate_up_silu.cost(1, 8, 16).bytes_written == 16
    assert lm_head_argmax.cost(3, 8, 16).bytes_written == 24


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: programmatic dependent launch needs one")
@pytest.mark.parametrize("rows", [1, 4, 16])
def test_a_dependent_chain_gives_what_a_plain_one_gives(device, rows):
    if not dependent_launch(device):
        pytest.skip("this card launches no dependents")
    x, norm, w = made(device, torch.bfloat16, rows, 4096, 1024)
    _, _, back = made(device, torch.bfloat16, rows, 1024, 4096)

    def chain(dependent):
        residual = x.contiguous().clone()
        for _ in range(50):
            y = norm_linear.norm_linear(residual, norm, w, EPS, dependent=dependent)
            linear_residual.linear_residual(y, back, residual, dependent=dependent)
        return residual

    plain = chain(False)
    for _ in range(10):
        assert torch.equal(chain(True), plain)
