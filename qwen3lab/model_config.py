"""A Qwen3 checkpoint's shape, as its config.json and generation_config.json state it. Frozen; reads no weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

DTYPES = ("float32", "bfloat16", "float16")
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
ROPE_TYPES = ("default", "yarn")


class CheckpointError(ValueError):
    """A checkpoint that cannot be served: what is wrong, where, and what to do about it."""


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding: `theta` is the base; "default", or "yarn" (Peng et al. 2023) for contexts beyond training.

    factor            how many times longer than original_max_position_embeddings the context may be
    attention_factor  what cos and sin are multiplied by; None is YaRN's 0.1 · ln(factor) + 1, or its mscale ratio
    beta_fast, _slow  turns within the original context above which a pair is kept, below which it is interpolated
    """

    theta: float = 1_000_000.0
    rope_type: str = "default"
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], source: str) -> RopeConfig:
        """transformers 5 writes `rope_parameters`; 4 wrote `rope_theta` beside an optional `rope_scaling`."""
        nested = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        rope_type = nested.get("rope_type") or nested.get("type") or "default"
        if rope_type not in ROPE_TYPES:
            raise CheckpointError(f"{source}: rope_type={rope_type!r}, supported: {', '.join(ROPE_TYPES)}")
        partial = nested.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))
        if partial != 1.0:
            raise CheckpointError(f"{source}: partial_rotary_factor={partial}, supported: 1.0")
        theta = nested.get("rope_theta", raw.get("rope_theta"))
        if theta is None:
            raise CheckpointError(f"{source}: rope_theta is missing, both at the top level and in rope_parameters")
        if rope_type == "default":
            return cls(theta=float(theta))
        if nested.get("factor") is None:
            raise CheckpointError(f"{source}: rope_type 'yarn' without a factor")
        given = {f.name: nested[f.name] for f in fields(cls) if nested.get(f.name) is not None}
        original = given.pop("original_max_position_embeddings", None) or raw.get("max_position_embeddings")
        given |= {"theta": float(theta), "rope_type": rope_type, "original_max_position_embeddings": int(original or 0)}
        return cls(**given)


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a Qwen3 dense checkpoint, as its config.json and generation_config.json state it."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    max_position_embeddings: int
    dtype: str
    eos_token_ids: tuple[int, ...]

    @classmethod
    def from_dir(cls, path: str | Path) -> ModelConfig:
        """Read `path`/config.json and, where present, generation_config.json (its eos ids win over config.json's).

        Raises CheckpointError naming the file and the key when it is not a Qwen3 dense model this engine can serve.
        """
        path = Path(path)
        raw = _read_json(path / "config.json")
        generation = _read_json(path / "generation_config.json") if (path / "generation_config.json").exists() else {}
        return cls.from_dict(raw, generation, source=str(path / "config.json"))

    @classmethod
    def from_dict(
        cls, raw: Mapping[str, Any], generation: Mapping[str, Any] | None = None, source: str = "config"
    ) -> ModelConfig:
        """The same from dictionaries; `source` names them in errors."""
        generation = generation or {}
        if raw.get("model_type") != "qwen3":
            raise CheckpointError(
                f"{source}: model_type={raw.get('model_type')!r}, supported: 'qwen3' (dense). "
                "Qwen2, Qwen3-MoE and Qwen3-VL are other architectures."
            )
        if raw.get("attention_bias"):
            raise CheckpointError(f"{source}: attention_bias=true; Qwen3 dense checkpoints have none")
        if raw.get("use_sliding_window"):
            raise CheckpointError(f"{source}: use_sliding_window=true is not supported; set it to false")
        if raw.get("hidden_act", "silu") != "silu":
            raise CheckpointError(f"{source}: hidden_act={raw['hidden_act']!r}, supported: 'silu'")
        if raw.get("quantization_config"):
            raise CheckpointError(f"{source}: quantised checkpoints are not supported; use the bf16 original")
        try:
            hidden, heads = int(raw["hidden_size"]), int(raw["num_attention_heads"])
            config = cls(
                vocab_size=int(raw["vocab_size"]),
                hidden_size=hidden,
                intermediate_size=int(raw["intermediate_size"]),
                num_layers=int(raw["num_hidden_layers"]),
                num_heads=heads,
                num_kv_heads=int(raw.get("num_key_value_heads") or heads),
                # Qwen3's head_dim is its own number: 1024 hidden over 16 heads is 64, and its heads are 128 wide.
                head_dim=int(raw.get("head_dim") or hidden // heads),
                rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
                rope=RopeConfig.from_dict(raw, source),
                tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
                max_position_embeddings=int(raw.get("max_position_embeddings", 32768)),
                dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "bfloat16").removeprefix("torch."),
                eos_token_ids=_eos(raw, generation),
            )
        except KeyError as missing:
            raise CheckpointError(f"{source}: key {missing} is missing") from None
        except (TypeError, ValueError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{source}: a value of the wrong kind ({error})") from None
        config.check(source)
        return config

    def check(self, source: str = "config") -> None:
        """Raise CheckpointError where the numbers cannot belong to one model."""
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads"):
            if getattr(self, name) < 1:
                raise CheckpointError(f"{source}: {name}={getattr(self, name)}, must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise CheckpointError(
                f"{source}: num_attention_heads={self.num_heads} does not divide by "
                f"num_key_value_heads={self.num_kv_heads}"
            )
        if self.head_dim < 2 or self.head_dim % 2:
            raise CheckpointError(f"{source}: head_dim={self.head_dim}, must be even (rotary pairs)")
        if self.dtype not in DTYPES:
            raise CheckpointError(f"{source}: dtype={self.dtype!r}, supported: {', '.join(DTYPES)}")

    @property
    def max_context(self) -> int:
        """Longest context the position embedding serves: YaRN stretches the original one by its factor."""
        stretched = int(self.rope.original_max_position_embeddings * self.rope.factor)
        return max(self.max_position_embeddings, stretched)

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def layer_params(self) -> int:
        """Weights of one layer: qkv and o projections, gate/up/down, two hidden norms, two head norms."""
        attention = self.hidden_size * (self.q_size + 2 * self.kv_size) + self.q_size * self.hidden_size
        mlp = 3 * self.hidden_size * self.intermediate_size
        return attention + mlp + 2 * self.hidden_size + 2 * self.head_dim

    @property
    def num_params(self) -> int:
        """All weights; a tied embedding is counted once."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_layers * self.layer_params + embeddings + self.hidden_size

    @property
    def decode_params(self) -> int:
        """Weights read to decode one token: every layer, the final norm and the head (an embedding row is nothing)."""
        return self.num_layers * self.layer_params + self.vocab_size * self.hidden_size + self.hidden_size

    def kv_bytes_per_token(self, dtype: str | None = None) -> int:
        """Bytes of K and V that one token keeps over all layers: 2 · L · Hkv · D · element size."""
        return 2 * self.num_layers * self.kv_size * DTYPE_BYTES[dtype or self.dtype]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; a checkpoint is a directory with config.json in it") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: not JSON ({error}); fetch the checkpoint again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a {type(value).__name__}, not an object; fetch the checkpoint again")
    return value


def _eos(raw: Mapping[str, Any], generation: Mapping[str, Any]) -> tuple[int, ...]:
    """generation_config.json's eos_token_id (an id or a list) wins; config.json's is used where it has none."""
    value = generation.get("eos_token_id")
    if value is None:
        value = raw.get("eos_token_id")
    if value is None:
        return ()
    return tuple(int(i) for i in (value if isinstance(value, list) else [value]))
