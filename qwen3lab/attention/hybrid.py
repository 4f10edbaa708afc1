"""attn_backend="hybrid": each kind of step to the backend that is best at it, over the same pages."""

from __future__ import annotations

import torch

from qwen3lab.attention.base import AttentionBackend, Batch, LayerCache
from qwen3lab.step import StepKind


class HybridAttention:
    """Decode, one query a row, to `decode`; whole prompts to `prefill`. The kind is the plan's: no tensor is asked."""

    name = "hybrid"

    def __init__(self, prefill: AttentionBackend, decode: AttentionBackend) -> None:
        self._prefill, self._decode = prefill, decode

    def _for(self, kind: StepKind) -> AttentionBackend:
        return self._decode if kind is StepKind.DECODE else self._prefill

    def provider(self, kind: StepKind) -> str:
        return self._for(kind).provider(kind)

    def prepare(self, batch: Batch) -> None:
        self._for(batch.kind).prepare(batch)

    def attend(self, q: torch.Tensor, cache: LayerCache, batch: Batch) -> torch.Tensor:
        return self._for(batch.kind).attend(q, cache, batch)
