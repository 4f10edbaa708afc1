"""How far a kernel's result may lie from fp64: a budget taken from torch's own chain in the same dtype."""

from __future__ import annotations

import torch


def allowed(chain: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Twice the largest error of `chain`, and one rounding of its dtype at the largest value of `exact`.

    Twice, because the order in which a machine's BLAS sums is its own: two orders round apart, and neither is the
    kernel's. A wrong kernel is off by far more: what it computes is then not rounding.
    """
    return 2 * (chain.double() - exact).abs().max() + torch.finfo(chain.dtype).eps * exact.abs().max()
