"""attn_backend="flash-attn": FlashAttention over the pages where they lie, for every kind of step."""

from __future__ import annotations

from typing import Any

import torch

from qwen3lab.attention.base import Batch, Heads, LayerCache
from qwen3lab.attention.flash_providers import Provider
from qwen3lab.step import StepKind

DTYPES = (torch.bfloat16, torch.float16)


class FlashAttention:
    """`provider` is asked once a layer; what its layers share in a step is made once, in `prepare`.

    Raises ValueError for a dtype or a page size that FlashAttention does not take.
    """

    name = "flash-attn"

    def __init__(self, provider: Provider, heads: Heads, page_size: int, dtype: torch.dtype) -> None:
        if dtype not in DTYPES:
            raise ValueError(
                f"attn_backend='flash-attn' or 'hybrid' with {dtype}: FlashAttention takes bfloat16 and float16; set "
                "dtype, or attn_backend='paged-attn' or 'torch'"
            )
        if page_size % provider.page_multiple:
            raise ValueError(
                f"block_size={page_size}: {provider.name} reads pages of a multiple of {provider.page_multiple}; set "
                "block_size, or another flash_provider"
            )
        self._provider, self._heads, self._page_size, self._dtype = provider, heads, page_size, dtype
        self._shared: dict[str, Any] = {}

    def provider(self, kind: StepKind) -> str:
        return self._provider.name

    def prepare(self, batch: Batch) -> None:
        lengths: dict[str, Any] = {"max_query_len": max(batch.query_lens_host), "max_len": max(batch.seq_lens_host)}
        plan = self._provider.plan
        if plan is None:
            self._shared = lengths
            return
        given = self._heads, self._dtype, self._page_size, batch.cu_seqlens_q, batch.seq_lens
        self._shared = {**lengths, "plan": plan(*given, **lengths)}

    def attend(self, q: torch.Tensor, cache: LayerCache, batch: Batch) -> torch.Tensor:
        return self._provider.attend(
            q, cache.k, cache.v, batch.cu_seqlens_q, batch.seq_lens, batch.block_table, **self._shared
        )
