"""argmax: the lowest id among equals, wherever the blocks end, and −1 for a row that is not finite."""

from __future__ import annotations

import pytest
import torch

from qwen3lab_kernels import argmax
from qwen3lab_kernels.cost import Cost

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("rows", "vocab"), [(1, 1), (1, 5000), (3, 1024), (2, 1025), (9, 4100)])
def test_same_as_torch_and_the_first_of_equals(device, dtype, rows, vocab):
    torch.manual_seed(0)
    logits = torch.randn(rows, vocab + 7, device=device).to(dtype)[:, :vocab]  # bfloat16 has ties enough of its own
    best = logits.float().amax(-1, keepdim=True)
    first = torch.where(logits.float() == best, torch.arange(vocab, device=device), vocab).amin(-1)
    out = argmax.argmax(logits)
    assert out.dtype == torch.int64
    assert out.tolist() == first.tolist() == argmax.reference(logits).tolist()


def test_ties_across_and_within_blocks(device):
    logits = torch.zeros(3, 300, device=device)
    logits[0, [37, 40, 200, 299]] = 5.0
    logits[1, [255, 256]] = 5.0
    logits[2] = -INF  # every token ruled out
    assert argmax.argmax(logits, block=16).tolist() == [37, 255, 0] == argmax.reference(logits).tolist()


def test_more_blocks_than_the_second_kernel_takes_at_a_time(device, monkeypatch):
    monkeypatch.setattr(argmax, "FINISH_BLOCK", 16)
    logits = torch.zeros(1, 4 * 16 + 9, device=device)
    logits[0, [66, 70]] = 1.0
    assert argmax.argmax(logits, block=2).tolist() == [66]


@pytest.mark.parametrize("block", [16, None])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("value", "told"), [(NAN, -1), (INF, -1), (-INF, None)])
def test_only_the_row_that_is_not_finite_says_so(device, dtype, value, told, block):
    for column in (0, 15, 16, 69):
        logits = torch.randn(3, 70, device=device).to(dtype)
        logits[1, (column + 20) % 70] = 9.0
        logits[1, column] = value
        out = argmax.argmax(logits, block=block).tolist()
        assert out == argmax.reference(logits).tolist()
        assert out[1] == ((column + 20) % 70 if told is None else told)
        assert min(out[0], out[2]) >= 0


def test_what_lies_beside_a_row_is_not_seen(device):
    beside = torch.full((2, 200), NAN, device=device)
    logits = beside[:, :100].copy_(torch.randn(2, 100))
    assert argmax.argmax(logits).tolist() == logits.argmax(-1).tolist()


def test_out_and_workspace_may_be_given(device):
    logits = torch.randn(2, 100, device=device)
    out = torch.empty(2, dtype=torch.int64, device=device)
    values = torch.empty(20, device=device)
    ids = torch.empty(20, dtype=torch.int32, device=device)
    assert argmax.argmax(logits, out=out, workspace=(values, ids), block=16) is out
    assert out.tolist() == logits.argmax(-1).tolist()
    assert values[14:].isnan().all(), "wrote beyond what it asked for"


def test_rows_beyond_2_to_the_31(device):
    far = 2**31 + 64
    storage = torch.UntypedStorage(2 * (far + 256), device=device)  # reserved, never touched: not torch.empty
    logits = torch.tensor([], dtype=torch.bfloat16, device=device).set_(storage, 0, (2, 64), (far, 1))
    near = torch.randperm(128, device=device).view(2, 64).bfloat16()
    assert argmax.argmax(logits.copy_(near)).tolist() == near.argmax(-1).tolist()


def test_what_does_not_fit_is_named(device):
    x = torch.zeros(2, 64, device=device)
    short = (torch.zeros(1, device=device), torch.zeros(2, dtype=torch.int32, device=device))
    for call, told in [
        (lambda: argmax.argmax(x[0]), r"logits are \(64,\)"),
        (lambda: argmax.argmax(x[:, :0]), "V ≥ 1"),
        (lambda: argmax.argmax(x.int()), "torch.int32"),
        (lambda: argmax.argmax(x, block=48), "block=48"),
        (lambda: argmax.argmax(x, out=torch.zeros(2, dtype=torch.int32, device=device)), "out is .* torch.int32"),
        (lambda: argmax.argmax(x, workspace=short), "at least 2 of torch.float32"),
    ]:
        with pytest.raises(ValueError, match="argmax: .*" + told):
            call()


def test_no_rows_and_cost(device):
    assert argmax.argmax(torch.zeros(0, 8, device=device)).shape == (0,)
    assert argmax.cost(2, 100) == Cost(400, 16, 200)
