"""Triton's interpreter with bfloat16 as a card has it. Kernels run in it where TRITON_INTERPRET=1, for their tests and
where a notebook shows them without a card: right and slow, so nothing is timed in it.
"""

from __future__ import annotations

import numpy as np
import torch
import triton.language as tl


def correct_bfloat16() -> None:
    """The interpreter (3.6 to 3.9) keeps bfloat16 as uint16; its dot multiplies those bit patterns as if they were
    numbers, and its casts from fp32 cut digits off where a card rounds to the nearest. Both are put right, once."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    plain_dot, plain_cast, plain_convert = (
        InterpreterBuilder.create_dot,
        InterpreterBuilder.cast_impl,
        InterpreterBuilder.create_fp_to_fp,
    )
    if plain_dot.__module__ == __name__:
        return

    def widened(handle: TensorHandle) -> TensorHandle:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def rounds(handle: TensorHandle, dtype: tl.dtype) -> bool:
        return handle.dtype.scalar == tl.float32 and dtype.scalar == tl.bfloat16

    def rounded(handle: TensorHandle) -> TensorHandle:
        whole = torch.from_numpy(np.ascontiguousarray(handle.data)).bfloat16()
        return TensorHandle(whole.view(torch.int16).numpy().view(np.uint16).reshape(handle.data.shape), tl.bfloat16)

    def create_dot(self, a, b, *rest):  # type: ignore[no-untyped-def]
        return plain_dot(self, widened(a), widened(b), *rest)

    def cast_impl(self, src, dst_type):  # type: ignore[no-untyped-def]
        return rounded(src) if rounds(src, dst_type) else plain_cast(self, src, dst_type)

    def create_fp_to_fp(self, src, dst_type, rounding_mode):  # type: ignore[no-untyped-def]
        return rounded(src) if rounds(src, dst_type) else plain_convert(self, src, dst_type, rounding_mode)

    InterpreterBuilder.create_dot = create_dot
    InterpreterBuilder.cast_impl = cast_impl
    InterpreterBuilder.create_fp_to_fp = create_fp_to_fp
