"""x·Wᵀ, the products that take nearly all of a step's time: torch's own where they are good, another form where not.

All forms return the same product, accumulated in fp32 and rounded once to x's dtype; they differ in the order of sums.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F


class Linear(Protocol):
    """A provider of products; `provider` is recorded with every measurement."""

    provider: str

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """x [T, in], weight [out, in] -> [T, out], contiguous, in x's dtype."""


class TorchLinear:
    """torch.nn.functional.linear: any device, any dtype."""

    provider = "torch.nn.functional.linear"

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight)


class WeightMajorLinear:
    """fp32 on a CPU: (W·xᵀ)ᵀ where that takes less time, else torch's own form.

    With the weight on the left its many rows are what is divided among threads, and each is read once for the whole
    batch; `F.linear` hands BLAS the few rows of x as the long side. Which is faster is up to the BLAS and the machine.
    Measured with torch 2.13 (MKL) on two cores:

    AVX2 (EPYC)      four rows take F.linear 2 to 4 times as long; one row, a quarter
    AVX-512 (Xeon)   8 to 48 rows of 1024 and more values take F.linear up to 2.2 times as long; elsewhere it is ahead
    """

    def __init__(self, capability: str) -> None:
        """`capability` as torch.backends.cpu.get_cpu_capability() has it."""
        wide = capability == "AVX512"
        self._rows = range(8, 49) if wide else range(2, 2**31)
        self._least_in = 1024 if wide else 1
        self.provider = f"torch.mm, weight first ({'8-48 rows of 1024 values and more' if wide else '2 rows and more'})"

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if x.shape[0] in self._rows and x.shape[1] >= self._least_in:
            return torch.mm(weight, x.t()).t().contiguous()
        return F.linear(x, weight)


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
    if dtype == torch.float32:
        return WeightMajorLinear(torch.backends.cpu.get_cpu_capability())
    native = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    return TorchLinear() if native[dtype]() else WideningLinear()
