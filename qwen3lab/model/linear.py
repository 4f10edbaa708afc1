"""x·Wᵀ, the products that take nearly all of a step's time: torch's own where they are good, another form where not.

All forms return the same product, accumulated in fp32 and rounded once to x's dtype; they differ in the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F


class Linear(Protocol):
    """A provider of products; `provider` is recorded with every measurement."""

    provider: str

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        """weight [out, in] as this provider wants it: done once, at start-up; only `__call__` can read the result."""

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """x [T, in] and a packed weight [out, in] -> [T, out], contiguous, in x's dtype."""


class TorchLinear:
    """torch.nn.functional.linear: any device, any dtype."""

    provider = "torch.nn.functional.linear"

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        return weight

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight)


class PackedLinear:
    """On a CPU: oneDNN's product with a weight that was laid out for it beforehand, as Inductor freezes weights.

    `F.linear` lays a weight out anew in every call, or hands it to a BLAS that was tuned for other processors. Measured
    with torch 2.13 on two cores of an AMD EPYC with AVX-512: fp32 takes a half to a seventh of `F.linear`'s time from
    one row to 400, bf16 a quarter to nine tenths; rows shorter than 1024 values at one row are the exception.

    The functions are torch's own and not public: they may move with its version, which constraints.txt pins.
    """

    provider = "oneDNN, packed weights (torch.ops.mkldnn._linear_pointwise)"
    ROWS_PACKED_FOR = 16  # a layout for one row is two to four times as slow at more; this one is as good at any number

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, self.ROWS_PACKED_FOR)
        return packed

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
        return out


class WideningLinear:
    """bf16 or fp16 on a CPU without instructions for them: fp32 products of weights that are widened a block at a time.

    torch's own product multiplies such values one by one there: four times as many rows take four times as long. The
    widened block stays in a core's cache and is used for the whole batch, so from a few rows on widening is cheaper,
    and it keeps no second copy of the weights. Up to NARROW_ROWS the read of the weights decides, and narrow ones are
    half as long.
    """

    provider = "torch.mm, weight first, widened to float32 in blocks"
    BLOCK_ELEMENTS = 2**18  # 1 MiB of fp32
    NARROW_ROWS = 2

    def __init__(self) -> None:
        self._block = torch.empty(self.BLOCK_ELEMENTS)

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        return weight

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if x.shape[0] <= self.NARROW_ROWS:
            return F.linear(x, weight)
        size_out, size_in = weight.shape
        rows = max(1, self.BLOCK_ELEMENTS // size_in)
        if rows * size_in > self._block.numel():
            self._block = torch.empty(rows * size_in)
        xt = x.t().float()
        out = torch.empty(x.shape[0], size_out, dtype=x.dtype)
        for start in range(0, size_out, rows):
            part = weight[start : start + rows]
            wide = self._block[: part.numel()].view(part.shape).copy_(part)
            out[:, start : start + rows] = torch.mm(wide, xt).t()
        return out


def choose(device: torch.device, dtype: torch.dtype) -> Linear:
    """The provider for a device and dtype."""
    if device.type != "cpu":
        return TorchLinear()
    native: dict[torch.dtype, Callable[[], bool]] = {
        torch.float32: torch.backends.mkldnn.is_available,
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    if native[dtype]():
        return PackedLinear()
    return TorchLinear() if dtype == torch.float32 else WideningLinear()
