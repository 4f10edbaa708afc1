"""A step's new keys and values go to their pages: what every backend reads, and none does itself."""

from __future__ import annotations

import torch

from qwen3lab.attention.base import LayerCache


def store(k: torch.Tensor, v: torch.Tensor, cache: LayerCache, slot_mapping: torch.Tensor) -> None:
    """Write k, v [T, Hkv, D] to slots [T] int32, each page · S + offset: one launch on a card, torch elsewhere."""
    if k.is_cuda:
        from qwen3lab_kernels.store_kv import store_kv

        store_kv(k, v, *cache, slot_mapping)
        return
    cache.k.view(-1, *k.shape[1:])[slot_mapping] = k
    cache.v.view(-1, *v.shape[1:])[slot_mapping] = v
