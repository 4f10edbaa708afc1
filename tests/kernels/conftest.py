"""Kernels run in Triton's interpreter where there is no card; the same tests run compiled where there is one."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined, so before any of them is imported


def _multiply_bfloat16_as_numbers() -> None:
    """The interpreter keeps bfloat16 as uint16, and its dot (3.6 to 3.9) multiplies those bit patterns: widen them."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    plain = InterpreterBuilder.create_dot

    def widened(handle: TensorHandle) -> TensorHandle:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return TensorHandle((handle.data.astype("uint32") << 16).view("float32"), tl.float32)

    def create_dot(self, a, b, *rest):
        return plain(self, widened(a), widened(b), *rest)

    InterpreterBuilder.create_dot = create_dot


if os.environ.get("TRITON_INTERPRET") == "1":
    _multiply_bfloat16_as_numbers()


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
