"""Qwen3's hot operations, one per file: reference (torch, fp32, the specification), Triton kernel, launcher, cost.

Nothing here imports `qwen3lab`. This folder's parent, `kernels/`, is a source root and never a package.
"""

import triton

if triton.knobs.runtime.interpret:
    from qwen3lab_kernels.interpreted import correct_bfloat16

    correct_bfloat16()
