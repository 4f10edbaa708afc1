"""silu_and_mul: within a rounding of fp64 in sizes that no block divides."""

from __future__ import annotations

import pytest
import torch
from fp64 import assert_close

from qwen3lab_kernels import silu_and_mul
from qwen3lab_kernels.cost import Cost


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("tokens", "size"), [(1, 3072), (5, 1025), (3, 1), (17, 96)])
def test_within_a_rounding_of_fp64(device, dtype, tokens, size):
    torch.manual_seed(0)
    x = (3 * torch.randn(tokens, 2 * size + 8, device=device)).to(dtype)[:, : 2 * size]
    gate, up = x.chunk(2, -1)
    exact = torch.nn.functional.silu(gate.double()) * up.double()
    eager = torch.nn.functional.silu(gate) * up
    out = torch.full((tokens, size + 3), float("nan"), device=device, dtype=dtype)
    assert silu_and_mul.silu_and_mul(x, out=out[:, :size]).data_ptr() == out.data_ptr()
    assert_close(out[:, :size], exact, eager)
    assert out[:, size:].isnan().all(), "wrote beside its rows"
    assert torch.equal(silu_and_mul.silu_and_mul(x), out[:, :size])
    assert torch.allclose(silu_and_mul.reference(x).double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # meant: 1 / (1 + inf) is the 0 that is wanted
def test_large_gates_neither_overflow_nor_leave_the_line(device):
    x = torch.tensor([[-1e4, -100.0, 0.0, 100.0, 1e4, 1, 1, 1, 1, 1]], device=device)
    assert torch.allclose(silu_and_mul.silu_and_mul(x), torch.tensor([[0.0, 0, 0, 100, 1e4]], device=device))


def test_rows_beyond_2_to_the_31(device):
    far = 2**31 + 64
    storage = torch.UntypedStorage(2 * (far + 256), device=device)  # reserved, never touched: not torch.empty
    x = torch.tensor([], dtype=torch.bfloat16, device=device).set_(storage, 0, (2, 64), (far, 1))
    near = torch.randn(2, 64, device=device).bfloat16()
    assert torch.equal(silu_and_mul.silu_and_mul(x.copy_(near)), silu_and_mul.silu_and_mul(near))


def test_what_does_not_fit_is_named(device):
    x = torch.zeros(2, 64, device=device)
    for arg, out, told in [
        (x[:, :7], None, r"x is \(2, 7\)"),
        (x.int(), None, "x is torch.int32"),
        (x.t().contiguous().t(), None, "last stride 1"),
        (x, torch.zeros(2, 64, device=device), r"out is \(2, 64\)"),
        (x, torch.zeros(2, 32, device=device).half(), "torch.float16"),
    ]:
        with pytest.raises(ValueError, match="silu_and_mul: .*" + told):
            silu_and_mul.silu_and_mul(arg, out=out)


def test_no_tokens_and_cost(device):
    assert silu_and_mul.silu_and_mul(torch.zeros(0, 64, device=device)).shape == (0, 32)
    assert silu_and_mul.cost(3, 100) == Cost(1200, 600, 1500)
