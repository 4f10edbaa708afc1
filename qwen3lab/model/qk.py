"""What q, k and v go through between their projection and attention: norm, rotation, and their way into the pages.

`Chain` is torch, an operation after another; `Fused` is one op. The gate says where the op's kernel cannot run, and
then the chain does, with that as its reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from qwen3lab.attention.base import Batch, LayerCache
from qwen3lab.attention.store import store
from qwen3lab.model.layers import rms_norm_rope
from qwen3lab.model.rope import RotaryEmbedding
from qwen3lab.model_config import ModelConfig

if TYPE_CHECKING:
    from qwen3lab.model.qwen3 import LayerWeights


class QueryKey(Protocol):
    """Norm and rotation of a layer's q and k, and the store of k and v."""

    provider: str  # what runs, recorded with every measurement

    def prepare(self, batch: Batch) -> None:
        """Once a step, before its first layer."""

    def apply(self, qkv: torch.Tensor, layer: LayerWeights, cache: LayerCache, batch: Batch) -> torch.Tensor:
        """qkv [T, (Hq + 2·Hkv)·D] -> q [T, Hq, D], normed and turned; k, so treated, and v go to their slots."""


class Chain:
    """The operations one by one, in torch."""

    def __init__(self, config: ModelConfig, rotary: RotaryEmbedding, reason: str = "not asked for") -> None:
        self._config, self._rotary = config, rotary
        self.provider = f"torch, unfused: {reason}"

    def prepare(self, batch: Batch) -> None:
        self._cos, self._sin = self._rotary.at(batch.positions)

    def apply(self, qkv: torch.Tensor, layer: LayerWeights, cache: LayerCache, batch: Batch) -> torch.Tensor:
        c = self._config
        qk, v = qkv.view(len(qkv), -1, c.head_dim).split((c.num_heads + c.num_kv_heads, c.num_kv_heads), dim=1)
        turned = rms_norm_rope(qk, layer.qk_norm, c.rms_norm_eps, self._cos, self._sin)
        q: torch.Tensor = turned[:, : c.num_heads]
        store(turned[:, c.num_heads :], v, cache, batch.slot_mapping)
        return q


class Fused:
    """The op `qwen3lab::rms_norm_rope_store`, which reads the projection where it lies and stores from registers."""

    def __init__(self, config: ModelConfig, rotary: RotaryEmbedding) -> None:
        from qwen3lab_kernels.rms_norm_rope import rms_norm_rope_store

        self._op, self._eps, self._num_kv_heads = rms_norm_rope_store, config.rms_norm_eps, config.num_kv_heads
        self._cos_sin = torch.cat((rotary.cos, rotary.sin), -1)
        self.provider = "qwen3lab::rms_norm_rope_store"

    def prepare(self, batch: Batch) -> None:
        pass

    def apply(self, qkv: torch.Tensor, layer: LayerWeights, cache: LayerCache, batch: Batch) -> torch.Tensor:
        q: torch.Tensor = self._op(
            qkv, layer.qk_norm[0], layer.qk_norm[-1], self._eps, batch.positions, self._cos_sin, self._num_kv_heads,
            cache.k, cache.v, batch.slot_mapping,
        )  # fmt: skip
        return q


def choose(config: ModelConfig, rotary: RotaryEmbedding, fused: bool, dtype: torch.dtype) -> QueryKey:
    """`fused` as far as the gate lets it."""
    if not fused:
        return Chain(config, rotary)
    from qwen3lab_kernels.rms_norm_rope import gate

    reason = gate(config.head_dim, dtype, rotary.cos.device)
    return Fused(config, rotary) if reason is None else Chain(config, rotary, reason)
