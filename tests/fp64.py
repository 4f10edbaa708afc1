"""How far a kernel's result may lie from fp64: a budget taken from torch's own chain in the same dtype."""

from __future__ import annotations

import torch


def assert_close(out: torch.Tensor, exact: torch.Tensor, chain: torch.Tensor) -> None:
    """`out`, of the dtype of torch's `chain`, lies within twice that chain's largest error and one rounding of fp64.

    The rounding is one at the largest value of `exact`. Twice, because the order in which a machine's BLAS sums is its
    own: two orders round apart, and neither is the kernel's. A wrong kernel is off by far more: what it computes is
    then not rounding.
    """
    allowed = 2 * (chain.double() - exact).abs().max() + torch.finfo(chain.dtype).eps * exact.abs().max()
    assert out.dtype == chain.dtype
    assert (out.double() - exact).abs().max() <= allowed
