"""add_rms_norm: the sum is the rounded one, its norm within a rounding of fp64, and nothing is written beside a row."""

from __future__ import annotations

import pytest
import torch
from fp64 import assert_close

from qwen3lab_kernels import add_rms_norm
from qwen3lab_kernels.cost import Cost

EPS = 1e-6
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def made(device, dtype, tokens, size):
    """x and residual with row strides of their own, poison beside the residual's rows; weight."""
    torch.manual_seed(0)
    x = torch.randn(tokens, size + 8, device=device).to(dtype)[:, :size]
    beside = torch.full((tokens, size + 5), float("nan"), device=device, dtype=dtype)
    residual = beside[:, :size].copy_(2 * torch.randn(tokens, size))
    return x, beside, residual, (1 + 0.1 * torch.randn(size, device=device)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("tokens", "size"), [(1, 1024), (3, 1), (2, 8192), (5, 1000), (17, 64)])
def test_within_a_rounding_of_fp64(device, dtype, tokens, size):
    x, beside, residual, weight = made(device, dtype, tokens, size)
    before = residual.clone()
    total = before + x
    normed, summed = add_rms_norm.reference(x, before, weight, EPS)
    out = add_rms_norm.add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(residual, total) and torch.equal(summed, total)

    def exact(values):
        values = values.double()
        return values * torch.rsqrt(values.square().mean(-1, keepdim=True) + EPS) * weight.double()

    truth = exact(residual)  # the norm is that of the sum as it was stored
    eager = torch.nn.functional.rms_norm(residual, (size,), weight, EPS)
    assert_close(out, truth, eager)
    assert torch.allclose(normed.double(), exact(total), rtol=1e-5, atol=1e-5)
    assert beside[:, size:].isnan().all(), "wrote beside its rows"


def test_out_may_be_given_and_may_be_x(device):
    x, _, residual, weight = made(device, torch.bfloat16, 3, 200)
    again, out = residual.clone(), torch.empty(3, 208, device=device, dtype=torch.bfloat16)
    expected = add_rms_norm.add_rms_norm(x, residual.clone(), weight, EPS)
    assert add_rms_norm.add_rms_norm(x, again, weight, EPS, out=out[:, :200]).data_ptr() == out.data_ptr()
    assert torch.equal(out[:, :200], expected) and out[:, 200:].isnan().all()
    assert torch.equal(add_rms_norm.add_rms_norm(x, residual, weight, EPS, out=x), expected)
    assert torch.equal(x, expected)


def test_rows_beyond_2_to_the_31(device):
    far = 2**31 + 64
    storage = torch.UntypedStorage(2 * (far + 256), device=device)  # reserved, never touched: not torch.empty
    residual = torch.tensor([], dtype=torch.bfloat16, device=device).set_(storage, 0, (2, 64), (far, 1))
    x, _, near, weight = made(device, torch.bfloat16, 2, 64)
    residual.copy_(near)
    out = add_rms_norm.add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(out, add_rms_norm.add_rms_norm(x, near, weight, EPS))
    assert torch.equal(residual, near)


def test_what_does_not_fit_is_named(device):
    x, _, residual, weight = made(device, torch.bfloat16, 2, 64)
    wide = torch.zeros(1, 8193, device=device)
    for args, out, told in [
        ((wide, wide, wide[0]), None, "H=8193, supported 1 to 8192"),
        ((x.int(), residual, weight), None, "x is torch.int32"),
        ((x, residual[:1], weight), None, r"residual is \(1, 64\)"),
        ((x, residual.float(), weight), None, "residual is torch.float32"),
        ((x, residual, weight[:8]), None, r"weight is \(8,\), wanted \[64\]"),
        ((x.t().contiguous().t(), residual, weight), None, "last stride 1"),
        ((x, residual, weight), x[:, :8], r"out is \(2, 8\)"),
    ]:
        with pytest.raises(ValueError, match="add_rms_norm: .*" + told):
            add_rms_norm.add_rms_norm(*args, EPS, out=out)


def test_no_tokens_and_cost(device):
    x, _, residual, weight = made(device, torch.bfloat16, 0, 64)
    assert add_rms_norm.add_rms_norm(x, residual, weight, EPS).shape == (0, 64)
    assert add_rms_norm.cost(3, 100) == Cost(2 * (600 + 100), 2 * 600, 1500)
