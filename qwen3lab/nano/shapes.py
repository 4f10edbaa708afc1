"""The shapes of Qwen3 dense checkpoints by name, and a shape as a config.json that every transformers version reads."""

from __future__ import annotations

from typing import Any

from qwen3lab.model_config import ModelConfig, RopeConfig


def _shape(
    vocab: int, hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, tied: bool = True,
    head_dim: int = 128, eos: tuple[int, ...] = (151645, 151643),
) -> ModelConfig:  # fmt: skip
    return ModelConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-6,
        rope=RopeConfig(theta=1e6),
        tie_word_embeddings=tied,
        max_position_embeddings=40960,
        dtype="bfloat16",
        eos_token_ids=eos,
    )


SHAPES = {
    "tiny": _shape(512, 64, 128, 2, 4, 2, head_dim=32, eos=(0, 2)),
    "nano": _shape(4096, 256, 768, 6, 4, 2, eos=(0, 2)),
    "0.6b": _shape(151936, 1024, 3072, 28, 16, 8),
    "1.7b": _shape(151936, 2048, 6144, 28, 16, 8),
    "4b": _shape(151936, 2560, 9728, 36, 32, 8),
    "8b": _shape(151936, 4096, 12288, 36, 32, 8, tied=False),
}


def config_json(shape: ModelConfig) -> dict[str, Any]:
    """`rope_theta` at the top for transformers 4, `rope_parameters` for 5."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": shape.dtype,
        "eos_token_id": shape.eos_token_ids[0] if shape.eos_token_ids else None,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "max_window_layers": shape.num_layers,
        "model_type": "qwen3",
        "num_attention_heads": shape.num_heads,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_kv_heads,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_parameters": {"rope_theta": shape.rope.theta, "rope_type": shape.rope.rope_type},
        "rope_theta": shape.rope.theta,
        "sliding_window": None,
        "tie_word_embeddings": shape.tie_word_embeddings,
        "torch_dtype": shape.dtype,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": shape.vocab_size,
    }


def generation_json(shape: ModelConfig) -> dict[str, Any]:
    return {"do_sample": False, "eos_token_id": list(shape.eos_token_ids), "pad_token_id": shape.eos_token_ids[0]}
