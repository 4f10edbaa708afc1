"""Every provider of x·Wᵀ gives the product: within its dtype's rounding of fp64, and contiguous."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from qwen3lab.model.linear import Linear, PackedLinear, TorchLinear, WideningLinear, choose

CASES = {
    "torch float32": (TorchLinear, torch.float32),
    "torch bfloat16": (TorchLinear, torch.bfloat16),
    "packed float32": (PackedLinear, torch.float32),
    "packed bfloat16": (PackedLinear, torch.bfloat16),
    "widening bfloat16": (WideningLinear, torch.bfloat16),
    "widening float16": (WideningLinear, torch.float16),
}


@pytest.mark.parametrize(("provider", "dtype"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("rows", [1, 2, 3, 16, 70])
@pytest.mark.parametrize("shape", [(7, 5), (1030, 512), (9, 1024), (3, 300_000)], ids=str)
def test_the_product_is_within_its_rounding_of_fp64(provider: Callable[[], Linear], dtype, rows, shape):
    torch.manual_seed(0)
    weight = (torch.randn(shape) / shape[1] ** 0.5).to(dtype)
    x = torch.randn(rows, shape[1]).to(dtype)
    linear = provider()
    out = linear(x, linear.pack(weight))
    assert (out.dtype, tuple(out.shape), out.is_contiguous()) == (dtype, (rows, shape[0]), True)
    exact = x.double() @ weight.double().t()
    # fp32 sums of n terms stray by √n · ε of the terms' size (1 here); then one rounding to the dtype.
    summed = 4 * shape[1] ** 0.5 * torch.finfo(torch.float32).eps
    assert ((out.double() - exact).abs() <= summed + torch.finfo(dtype).eps / 2 * (exact.abs() + summed)).all()


def test_weights_of_different_sizes_share_the_block():
    linear, x = WideningLinear(), torch.randn(4, 300_000).bfloat16()
    wide, narrow = torch.randn(2, 300_000).bfloat16(), torch.randn(9, 8).bfloat16()
    first = linear(x, wide)
    linear(x[:, :8], narrow)
    assert torch.equal(linear(x, wide), first)


def test_the_choice_is_recorded_and_follows_the_machine(monkeypatch, chaotic):
    from qwen3lab import LLM

    cpu = torch.device("cpu")
    for dtype, asked, without in (
        (torch.float32, (torch.backends.mkldnn, "is_available"), TorchLinear),
        (torch.bfloat16, (torch.ops.mkldnn, "_is_mkldnn_bf16_supported"), WideningLinear),
    ):
        for native, chosen in ((True, PackedLinear), (False, without)):
            monkeypatch.setattr(*asked, lambda native=native: native)
            assert isinstance(choose(cpu, dtype), chosen)
    assert isinstance(choose(torch.device("cuda"), torch.float32), TorchLinear)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert LLM(chaotic, dtype="float32", num_kv_blocks=4).facts.linear_provider == PackedLinear.provider


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_a_packed_weight_takes_the_place_of_the_one_that_was_read(chaotic):
    """But for an embedding that is the head too, which is looked up row by row."""
    from qwen3lab import LLM

    weights = LLM(chaotic, dtype="float32", num_kv_blocks=4)._runner.model.weights
    assert {w.device.type for layer in weights.layers for w in (layer.qkv, layer.o, layer.gate_up, layer.down)} == {
        "cpu"
    }
    assert all(layer.qkv.layout == torch._mkldnn for layer in weights.layers), "packed, and nothing else is kept"
    assert weights.embedding.layout == torch.strided
