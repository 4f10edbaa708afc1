"""Programmatic dependent launch: a kernel starts before its predecessor has ended, and waits only for what that writes.

A dependent kernel lets its successor start (`gdc_launch_dependents`), asks for what the chain does not write, and then
waits for its predecessor's results (`gdc_wait`). As every kernel of a chain signals before it waits, several may be
under way at once: what is read before the wait must have been written before the chain began.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # a Triton without them: `dependent_launch` then says no
    gdc_launch_dependents = gdc_wait = None

LINE_BYTES = tl.constexpr(128)


def dependent_launch(device: torch.device) -> bool:
    """Whether kernels here can be launched before their predecessor has ended (compute capability 9.0 and up)."""
    return gdc_wait is not None and device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


def dependent_options(dependent: bool) -> dict[str, bool]:
    """What such a launch takes beside its arguments; passed only where it is asked for."""
    return {"launch_pdl": True} if dependent else {}


@triton.jit
def line_starts(p, SIZE: tl.constexpr):
    """Where the cache lines of SIZE values of p's type begin, as offsets in values; SIZE is a power of two."""
    LINE: tl.constexpr = LINE_BYTES // (p.dtype.element_ty.primitive_bitwidth // 8)
    return tl.arange(0, max(SIZE // LINE, 1)) * LINE


@triton.jit
def prefetch(pointers):
    """The cache lines of `pointers` into L2. No value is read, so a line that is written meanwhile is still right."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers.to(tl.int64)], tl.int32, is_pure=False, pack=1
    )
