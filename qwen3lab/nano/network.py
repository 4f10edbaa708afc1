"""Qwen3 for training: the whole network over whole sequences, no cache. Parameters carry Hugging Face's names.

B rows, T positions, H hidden, Hq/Hkv heads of D, V vocabulary. Weights are kept in fp32; under autocast the products
run in bf16 and so does the residual stream, as it will when the checkpoint is served.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qwen3lab.model_config import ModelConfig


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps) * self.weight).to(x.dtype)


def rope_table(length: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin, both [T, D] in fp32; the two halves of D are a pair (Qwen3's rotate-half layout)."""
    inverse = theta ** (-torch.arange(0, head_dim, 2, device=device).double() / head_dim)
    angle = torch.outer(torch.arange(length, device=device).double(), inverse)
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos().float(), angle.sin().float()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, heads, T, D]."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, s: ModelConfig) -> None:
        super().__init__()
        self.shape = s
        self.q_proj = nn.Linear(s.hidden_size, s.q_size, bias=False)
        self.k_proj = nn.Linear(s.hidden_size, s.kv_size, bias=False)
        self.v_proj = nn.Linear(s.hidden_size, s.kv_size, bias=False)
        self.o_proj = nn.Linear(s.q_size, s.hidden_size, bias=False)
        self.q_norm = RMSNorm(s.head_dim, s.rms_norm_eps)
        self.k_norm = RMSNorm(s.head_dim, s.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = lambda y: y.view(batch, length, -1, self.shape.head_dim)  # noqa: E731
        q = _rotate(self.q_norm(heads(self.q_proj(x))).transpose(1, 2), cos, sin)
        k = _rotate(self.k_norm(heads(self.k_proj(x))).transpose(1, 2), cos, sin)
        v = heads(self.v_proj(x)).transpose(1, 2)
        group = self.shape.num_heads // self.shape.num_kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self, s: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(s.hidden_size, s.intermediate_size, bias=False)
        self.up_proj = nn.Linear(s.hidden_size, s.intermediate_size, bias=False)
        self.down_proj = nn.Linear(s.intermediate_size, s.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, s: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.mlp = MLP(s)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, s: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocab_size, s.hidden_size)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.num_layers))
        self.norm = RMSNorm(s.hidden_size, s.rms_norm_eps)


class Network(nn.Module):
    """Tied Qwen3. `forward` takes token ids [B, T] and gives logits [B, T, V]."""

    def __init__(self, shape: ModelConfig) -> None:
        if not shape.tie_word_embeddings:
            raise ValueError("Network: tie_word_embeddings=False, only tied shapes are trained here")
        super().__init__()
        self.shape = shape
        self.model = Body(shape)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Uniform-in-variance projections, and zeros where a layer writes: each starts as the identity."""
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
            elif "embed_tokens" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.02)
            elif weight.ndim == 2:
                weight.copy_(torch.randn(weight.shape, generator=generator) * weight.shape[1] ** -0.5)

    def forward(self, ids: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = self.model.embed_tokens(ids)
        if torch.is_autocast_enabled(ids.device.type):
            x = x.to(torch.get_autocast_dtype(ids.device.type))
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)
