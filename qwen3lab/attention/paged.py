"""attn_backend="paged-attn": our kernels over the pages; where Triton has no device, their specification in torch."""

from __future__ import annotations

import torch
import triton

from qwen3lab.attention.base import Batch, Heads, LayerCache
from qwen3lab.step import StepKind
from qwen3lab_kernels import paged_decode, paged_prefill, pages

SPECIFICATION = "the kernels' specification in torch"


class PagedAttention:
    """paged_decode for DECODE, paged_prefill for the rest. ValueError where the kernels do not take this model."""

    name = "paged-attn"

    def __init__(self, heads: Heads, page_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self._heads, self._device = heads, device
        self._runs = "kernel" if device.type == "cuda" else "interpreter" if triton.knobs.runtime.interpret else None
        reason = pages.gate(heads[2], page_size, dtype)
        if self._runs and reason:
            raise ValueError(f"attn_backend='paged-attn' or 'hybrid': {reason}")
        self._max_len, self._splits = 0, 1
        self._workspace: torch.Tensor | None = None

    def provider(self, kind: StepKind) -> str:
        if self._runs is None:
            return SPECIFICATION
        op = paged_decode.OP if kind is StepKind.DECODE else paged_prefill.OP
        return f"qwen3lab_kernels.{op} (Triton {self._runs})"

    def prepare(self, batch: Batch) -> None:
        if batch.kind is not StepKind.DECODE or self._runs is None:
            return
        num_heads, num_kv_heads, dim = self._heads
        self._max_len = max(batch.seq_lens_host)
        self._splits = paged_decode.choose_splits(
            batch.num_rows, num_kv_heads, self._max_len, paged_decode.sm_count(self._device)
        )
        shape = paged_decode.workspace_shape(batch.num_rows, self._splits, 1, num_heads, dim)
        self._workspace = torch.empty(shape, device=self._device) if self._splits > 1 else None

    def attend(self, q: torch.Tensor, cache: LayerCache, batch: Batch) -> torch.Tensor:
        kv = (cache.k, cache.v)
        if self._runs is None:
            bounds, lens, table = batch.cu_seqlens_q, batch.seq_lens, batch.block_table
            out: torch.Tensor = paged_prefill.reference(q, *kv, bounds, lens, table).to(q.dtype)
        elif batch.kind is StepKind.DECODE:
            out = paged_decode.paged_decode(
                q[:, None], *kv, batch.block_table, batch.seq_lens,
                max_len=self._max_len, num_splits=self._splits, workspace=self._workspace,
            )[:, 0]  # fmt: skip
        else:
            longest = max(batch.query_lens_host)
            out = paged_prefill.paged_prefill(
                q, *kv, batch.cu_seqlens_q, batch.seq_lens, batch.block_table, max_query_len=longest
            )
        return out
