"""What was asked of the engine: every option, frozen; an unknown one raises.

Facts found at start-up (page counts, providers chosen) are output, not input, and never written back here:
see `engine.runner.EngineFacts`.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import asdict, dataclass, fields
from typing import Any

from qwen3lab.model_config import DTYPES

ATTN_BACKENDS = ("torch", "flash-attn", "paged-attn", "hybrid")
ABLATIONS = ("kv-view", "host-route")


@dataclass(frozen=True)
class EngineConfig:
    """Everything `LLM(...)` accepts besides the model. No switch given: the plain path, with nothing opted into.

    device                  "auto" (cuda where there is one), "cpu", "cuda" or "cuda:N"
    dtype                   "auto" (the checkpoint's own) or one of DTYPES; weights, activations and KV cache alike
    attn_backend            None (the plain one, "torch") or one of ATTN_BACKENDS
    flash_provider          whose FlashAttention "flash-attn" and "hybrid" use, see attention.flash_providers; None: the
                            first that is installed
    ablate                  None, or one of ABLATIONS: what of "hybrid" a measurement takes back, see attention.detours
    enable_fused_ops        norm, rotation and store of q, k and v as one op where its gate lets it, see model.qk
    max_num_batched_tokens  prompt tokens a step may prefill; a longer prompt gets a step of its own
    max_num_seqs            rows a step may hold
    max_model_len           longest prompt + output; None is the longest its positions serve
    block_size              tokens a KV page holds; None is 16 on a card, 128 on a CPU
    num_kv_blocks           KV pages; None sizes the pool (see engine.runner.pool_pages)
    gpu_memory_utilization  share of a card's memory that weights and KV pool may take together
    enable_prefix_caching   keep full pages of ended requests, and begin requests with the same prefix behind them
    seed                    of requests that sample and bring no seed of their own
    """

    device: str = "auto"
    dtype: str = "auto"
    attn_backend: str | None = None
    flash_provider: str | None = None
    ablate: str | None = None
    enable_fused_ops: bool = False
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    max_model_len: int | None = None
    block_size: int | None = None
    num_kv_blocks: int | None = None
    gpu_memory_utilization: float = 0.85
    enable_prefix_caching: bool = False
    seed: int = 0

    @classmethod
    def from_options(cls, **options: Any) -> EngineConfig:
        """Options by name; QWEN3LAB_<NAME> fills what is not given. An unknown name raises TypeError."""
        known = {f.name: f for f in fields(cls)}
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise TypeError(f"unknown option {name!r}{hint} Known: {', '.join(known)}")
        for name in known:
            text = os.environ.get(f"QWEN3LAB_{name.upper()}")
            if text is not None and name not in options:
                options[name] = _from_text(name, text, str(known[name].type))
        return cls(**options)

    def __post_init__(self) -> None:
        _require_choice("device", self.device.split(":")[0], ("auto", "cpu", "cuda"))
        _require_choice("dtype", self.dtype, ("auto", *DTYPES))
        _require_choice("attn_backend", self.attn_backend, (None, *ATTN_BACKENDS))
        _require_choice("ablate", self.ablate, (None, *ABLATIONS))
        if self.ablate is not None and self.attn_backend != "hybrid":
            raise ValueError(f"ablate={self.ablate!r} takes from attn_backend='hybrid', not from {self.attn_backend!r}")
        if self.flash_provider is not None and self.attn_backend not in ("flash-attn", "hybrid"):
            raise ValueError(
                f"flash_provider={self.flash_provider!r}: only 'flash-attn' and 'hybrid' use one, not "
                f"attn_backend={self.attn_backend!r}"
            )
        for name in ("max_num_batched_tokens", "max_num_seqs"):
            _require_at_least(name, getattr(self, name), 1)
        for name in ("max_model_len", "block_size", "num_kv_blocks"):
            if getattr(self, name) is not None:
                _require_at_least(name, getattr(self, name), 1)
        for name in ("enable_fused_ops", "enable_prefix_caching"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r}, allowed: True, False")
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ValueError(f"gpu_memory_utilization={self.gpu_memory_utilization}, allowed: over 0 and up to 1")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _require_choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r}, allowed: {', '.join(map(repr, allowed))}")


def _require_at_least(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r}, allowed: a whole number of at least {least}")


def _from_text(name: str, text: str, annotation: str) -> Any:
    """An environment variable's text as the option's own type; what does not parse raises, it is never ignored."""
    if annotation == "bool":
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off", ""):
            return False
        raise ValueError(f"QWEN3LAB_{name.upper()}={text!r}, allowed: 1 or 0")
    kind = float if annotation == "float" else int if annotation.startswith("int") else str
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"QWEN3LAB_{name.upper()}={text!r}, allowed: {kind.__name__}") from None
