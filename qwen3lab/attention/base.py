"""The contract of an attention backend. Every backend reads the same pages; none keeps a cache of its own.

The KV cache is, per layer, two tensors [P, S, Hkv, D] (pages, page size, heads, head dim: FlashAttention's BSHD order).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch

from qwen3lab.step import StepKind


@dataclass(frozen=True)
class Batch:
    """One step's inputs, complete at birth. All tensors are int32 views of one buffer on the device.

    What the host knows stays there as ints too (`…_host`), so that no decision waits for the device.

    token_ids     [T]       ids to embed
    positions     [T]       position of each in its sequence
    slot_mapping  [T]       where each one's K and V go: page · S + offset in the page
    cu_seqlens_q  [B + 1]   row b's tokens are [cu_seqlens_q[b], cu_seqlens_q[b + 1])
    seq_lens      [B]       keys row b's last query sees
    logits_rows   [B]       index into T of each row's last token
    block_table   [B, N]    pages of each row in order of position, then the padding page
    """

    kind: StepKind
    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    cu_seqlens_q: torch.Tensor
    seq_lens: torch.Tensor
    logits_rows: torch.Tensor
    block_table: torch.Tensor
    query_lens_host: tuple[int, ...]
    seq_lens_host: tuple[int, ...]
    pages_host: tuple[tuple[int, ...], ...]

    @cached_property
    def run_starts(self) -> tuple[int | None, ...]:
        """Each row's first page where its pages follow one another, else None. The same for every layer of a step."""
        return tuple(
            table[0] if table == tuple(range(table[0], table[0] + len(table))) else None for table in self.pages_host
        )

    @property
    def num_rows(self) -> int:
        return len(self.seq_lens_host)

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]


Heads = tuple[int, int, int]  # Hq, Hkv, D
# On a CPU a row is read in place as long as its pages follow one another, so they are large there.
PAGE_SIZE = {"cuda": 16, "cpu": 128}


class LayerCache(NamedTuple):
    """One layer's pages: k and v, each [P, S, Hkv, D] in the model's dtype."""

    k: torch.Tensor
    v: torch.Tensor


class AttentionBackend(Protocol):
    """Attends over everything stored so far, the step's own keys and values (see store.py) included."""

    name: str  # as given to LLM(attn_backend=…)

    def provider(self, kind: StepKind) -> str:
        """What really computes a step of that kind, recorded with every measurement."""

    def prepare(self, batch: Batch) -> None:
        """What the layers of a step share; called once, before the first of them."""

    def attend(self, q: torch.Tensor, cache: LayerCache, batch: Batch) -> torch.Tensor:
        """Causal attention of q [T, Hq, D] over each row's pages -> [T, Hq, D], scaled by 1/√D."""
