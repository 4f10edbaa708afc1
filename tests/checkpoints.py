"""Designed checkpoints: tiny Qwen3 models whose right answer is known, so that a wrong token has one cause.

markov   next token = π(last token), whatever the context. Blind to attention: for stops, lengths, accounting.
echo     tied embeddings, dead layers: repeats the last prompt token for ever.
chaotic  random attention and MLP, scaled up so that margins are usable: depends on far context. For KV and RoPE.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

VOCAB = 512


def config(**changes: Any) -> dict[str, Any]:
    """A config.json in the older, flat form; head_dim 32 is not hidden / heads = 16."""
    base = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "float32",
        "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False, "attention_bias": False,
        "max_position_embeddings": 8192, "use_sliding_window": False, "eos_token_id": None, "bos_token_id": None,
    }  # fmt: skip
    return base | changes


def random_tensors(config: dict[str, Any], std_scale: float = 1.5, seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights N(0, std_scale / √fan_in), norms around 1, embeddings N(0, 1)."""
    g = torch.Generator().manual_seed(seed)
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=g) * (std_scale / columns**0.5)

    def norm(size: int) -> torch.Tensor:
        return 1 + 0.1 * torch.randn(size, generator=g)

    tensors = {
        "model.embed_tokens.weight": torch.randn(config["vocab_size"], hidden, generator=g),
        "model.norm.weight": norm(hidden),
    }
    for i in range(config["num_hidden_layers"]):
        tensors |= {
            f"model.layers.{i}.{name}.weight": value
            for name, value in {
                "input_layernorm": norm(hidden),
                "self_attn.q_proj": matrix(q, hidden),
                "self_attn.k_proj": matrix(kv, hidden),
                "self_attn.v_proj": matrix(kv, hidden),
                "self_attn.o_proj": matrix(hidden, q),
                "self_attn.q_norm": norm(dim),
                "self_attn.k_norm": norm(dim),
                "post_attention_layernorm": norm(hidden),
                "mlp.gate_proj": matrix(inner, hidden),
                "mlp.up_proj": matrix(inner, hidden),
                "mlp.down_proj": matrix(hidden, inner),
            }.items()
        }
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    return tensors


def write(
    path: Path,
    config: dict[str, Any],
    tensors: dict[str, torch.Tensor],
    *,
    generation: dict[str, Any] | None = None,
    shards: int = 1,
) -> Path:
    """A Hugging Face checkpoint directory; `shards` > 1 writes an index beside them."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    tensors = {name: t.contiguous() for name, t in tensors.items()}
    if shards == 1:
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        return path
    weight_map = {}
    for i in range(shards):
        shard = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(tensors.items())[i::shards])
        save_file(part, path / shard, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, shard)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


def markov(path: Path, successor: list[int] | None = None, **changes: Any) -> Path:
    """CKPT-M: greedy decoding follows `successor` (default t → t + 1, wrapping) from the last prompt token."""
    generation = changes.pop("generation", None)
    c = config(tie_word_embeddings=False, **changes)
    successor = successor or [(t + 1) % c["vocab_size"] for t in range(c["vocab_size"])]
    tensors = _dead_layers(random_tensors(c))
    # Row π(t) of the head is the embedding of t, so the largest logit after t is that of π(t).
    head = torch.zeros(c["vocab_size"], c["hidden_size"])
    head[successor] = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = head
    return write(path, c, tensors, generation=generation)


def echo(path: Path, **changes: Any) -> Path:
    """CKPT-T: tied, so that the largest logit after t is that of t itself."""
    generation = changes.pop("generation", None)
    c = config(tie_word_embeddings=True, **changes)
    return write(path, c, _dead_layers(random_tensors(c)), generation=generation)


def chaotic(path: Path, *, shards: int = 1, seed: int = 0, **changes: Any) -> Path:
    """CKPT-A."""
    c = config(**changes)
    return write(path, c, random_tensors(c, seed=seed), shards=shards)


def overflowing(path: Path, at: int = 99) -> Path:
    """CKPT-M whose logits after id `at`, and after no other id, hold an infinity: a head weight near fp32's largest."""
    from safetensors.torch import load_file

    markov(path)
    tensors = load_file(path / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    embedding[:, 0] = 0.0
    embedding[at] = 0.0
    embedding[at, 0] = 1.0
    tensors["lm_head.weight"][42, 0] = 3e38
    save_file(tensors, path / "model.safetensors")
    return path


def _dead_layers(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Nothing reaches the residual stream; the final norm is plain."""
    return {
        name: torch.zeros_like(t)
        if name.endswith(("o_proj.weight", "down_proj.weight"))
        else torch.ones_like(t)
        if name == "model.norm.weight"
        else t
        for name, t in tensors.items()
    }
