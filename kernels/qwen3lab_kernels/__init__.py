"""Qwen3's hot operations, one per file: reference (torch, fp32, the specification), Triton kernel, launcher, cost.

Nothing here imports `qwen3lab`. This folder's parent, `kernels/`, is a source root and never a package.
"""
