"""Checkpoints of any Qwen3 shape: random ones, and the small model enlarged to exactly that shape, same function.

Enlarging repeats. With the residual stream repeated k times, every RMSNorm sees the mean square it saw before, so norm
weights and eps stay as they are. A projection reads W/p from each of p copies (p the largest power of two that fits, so
that dividing is exact) and writes to all of them; heads and MLP units are repeated in the same way, GQA groups staying
together. Layers beyond the source's write nothing: their o_proj and down_proj are zero and everything else is random.
An id beyond the source's vocabulary has the mean of all real rows in the head: its logit is the mean of the real
logits, which for no hidden state is over their maximum. So greedy decoding never chooses it, tied head or not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from qwen3lab.config import CheckpointError, ModelConfig
from qwen3lab.nano.checkpoint import copy_tokenizer, new_directory, write_configs
from qwen3lab.nano.shapes import SHAPES

SHARD_BYTES = 2**30
Named = Iterator[tuple[str, Tensor]]


def random_checkpoint(shape: str | ModelConfig, out: Path, seed: int = 0, dtype: str = "bfloat16") -> Path:
    """Random weights of `shape` (a name of SHAPES, or a config of your own), for speed where the text does not matter.

    Small embeddings under projections of 1.5/√fan_in: what the layers write outweighs the id that was read, so that
    greedy text varies instead of repeating one token. No tokenizer: such a checkpoint takes ids.
    """
    config = replace(_shape(shape), dtype=dtype)
    config.check("random_checkpoint")
    draw = _drawer(seed)

    def tensors() -> Named:
        yield "model.embed_tokens.weight", draw(config.vocab_size, config.hidden_size, 0.02)
        for i in range(config.num_layers):
            for name, (rows, columns) in _matrices(config).items():
                yield f"model.layers.{i}.{name}.weight", draw(rows, columns, 1.5 / columns**0.5)
            for name, size in _norms(config).items():
                yield f"model.layers.{i}.{name}.weight", torch.ones(size)
        yield "model.norm.weight", torch.ones(config.hidden_size)
        if not config.tie_word_embeddings:
            yield "lm_head.weight", draw(config.vocab_size, config.hidden_size, 0.02)

    with new_directory(out) as directory:
        _write(tensors(), config, directory)
    return out


def scale_checkpoint(source: Path, shape: str | ModelConfig, out: Path, seed: int = 0) -> Path:
    """The function of `source` (a tied checkpoint in one file) in `shape`, with the source's tokenizer and EOS ids.

    Raises CheckpointError where the target is no multiple of the source's hidden size and heads, or differs in
    head_dim or is smaller anywhere.
    """
    small = ModelConfig.from_dir(source)
    large = _shape(shape)
    _check(small, large)
    large = replace(
        large,
        rope=small.rope,
        rms_norm_eps=small.rms_norm_eps,
        max_position_embeddings=small.max_position_embeddings,
        dtype=small.dtype,
        eos_token_ids=small.eos_token_ids,
    )
    weights = {name: tensor.float() for name, tensor in load_file(source / "model.safetensors").items()}
    with new_directory(out) as directory:
        _write(_enlarged(weights, small, large, _drawer(seed)), large, directory)
        copy_tokenizer(source, directory)
    return out


def _check(small: ModelConfig, large: ModelConfig) -> None:
    def refuse(what: str, have: int, want: int, allowed: str) -> None:
        raise CheckpointError(f"cannot enlarge {what} from {have} to {want}; allowed: {allowed}")

    if not small.tie_word_embeddings:
        raise CheckpointError("cannot enlarge an untied checkpoint; the source's head must be its embedding")
    if small.head_dim != large.head_dim:
        refuse("head_dim", small.head_dim, large.head_dim, "the same")
    group, wanted = small.num_heads // small.num_kv_heads, large.num_heads // large.num_kv_heads
    for what, have, want in (
        ("hidden_size", small.hidden_size, large.hidden_size),
        ("num_key_value_heads", small.num_kv_heads, large.num_kv_heads),
        ("query heads per KV head", group, wanted),
    ):
        if want % have:
            refuse(what, have, want, f"multiples of {have}")
    for what, have, want in (
        ("num_hidden_layers", small.num_layers, large.num_layers),
        ("intermediate_size", small.intermediate_size, large.intermediate_size),
        ("vocab_size", small.vocab_size, large.vocab_size),
    ):
        if want < have:
            refuse(what, have, want, f"at least {have}")


def _enlarged(w: Mapping[str, Tensor], small: ModelConfig, large: ModelConfig, draw: Callable[..., Tensor]) -> Named:
    copies = large.hidden_size // small.hidden_size
    # Which source head each target head repeats: KV head b is b mod Hkv, and its group repeats that one's group.
    kv_from = torch.arange(large.num_kv_heads) % small.num_kv_heads
    group, wide = small.num_heads // small.num_kv_heads, large.num_heads // large.num_kv_heads
    q_from = (kv_from[:, None] * group + torch.arange(wide) % group).flatten()
    unit_from = torch.arange(large.intermediate_size) % small.intermediate_size

    def reads(weight: Tensor) -> Tensor:
        """[rows, H] → [rows, H′]: from the first p copies of its input, a p-th each."""
        return torch.cat([weight * share for share in _shares(copies)], dim=1)

    def heads(weight: Tensor, which: Tensor) -> Tensor:
        return weight.unflatten(0, (-1, small.head_dim))[which].flatten(0, 1)

    def writes(weight: Tensor, source_of: Tensor, width: int) -> Tensor:
        """[H, in] → [H′, in′]: column blocks of `width` repeated as `source_of` says, each counted once in all."""
        blocks = weight.unflatten(1, (-1, width))
        times = len(source_of) // blocks.shape[1]  # whole repeats; a partial one at the end writes nothing
        place = torch.zeros(blocks.shape[1], dtype=torch.long)
        shares = torch.zeros(len(source_of))
        for i, block in enumerate(source_of.tolist()):
            shares[i] = _shares(times)[place[block]] if place[block] < times else 0.0
            place[block] += 1
        return (blocks[:, source_of] * shares[:, None]).flatten(1).repeat(copies, 1)

    embedding = w["model.embed_tokens.weight"].repeat(1, copies)
    padding = embedding.double().mean(0, keepdim=True).float().expand(large.vocab_size - small.vocab_size, -1)
    yield "model.embed_tokens.weight", torch.cat([embedding, padding])
    for i in range(small.num_layers):
        layer = f"model.layers.{i}."

        def get(name: str, layer: str = layer) -> Tensor:
            return w[f"{layer}{name}.weight"]

        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}{name}.weight", get(name).repeat(copies)
        for name in ("self_attn.q_norm", "self_attn.k_norm"):
            yield f"{layer}{name}.weight", get(name)
        yield f"{layer}self_attn.q_proj.weight", heads(reads(get("self_attn.q_proj")), q_from)
        yield f"{layer}self_attn.k_proj.weight", heads(reads(get("self_attn.k_proj")), kv_from)
        yield f"{layer}self_attn.v_proj.weight", heads(reads(get("self_attn.v_proj")), kv_from)
        yield f"{layer}self_attn.o_proj.weight", writes(get("self_attn.o_proj"), q_from, small.head_dim)
        yield f"{layer}mlp.gate_proj.weight", reads(get("mlp.gate_proj"))[unit_from]
        yield f"{layer}mlp.up_proj.weight", reads(get("mlp.up_proj"))[unit_from]
        yield f"{layer}mlp.down_proj.weight", writes(get("mlp.down_proj"), unit_from, 1)
    for i in range(small.num_layers, large.num_layers):
        for name, (rows, columns) in _matrices(large).items():
            silent = name.endswith(("o_proj", "down_proj"))
            weight = torch.zeros(rows, columns) if silent else draw(rows, columns, 1 / columns**0.5)
            yield f"model.layers.{i}.{name}.weight", weight
        for name, size in _norms(large).items():
            yield f"model.layers.{i}.{name}.weight", torch.ones(size)
    # The head is the embedding, all copies of it: here it is the norm that gives each copy its share.
    yield "model.norm.weight", torch.cat([w["model.norm.weight"] * share for share in _shares(copies)])
    if not large.tie_word_embeddings:
        yield "lm_head.weight", torch.cat([embedding, padding])


def _shares(copies: int) -> list[float]:
    """What each of `copies` copies contributes: a p-th each for the first p, p the largest power of two that fits."""
    p = 1 << (copies.bit_length() - 1)
    return [1 / p] * p + [0.0] * (copies - p)


def _shape(shape: str | ModelConfig) -> ModelConfig:
    if isinstance(shape, ModelConfig):
        return shape
    if shape not in SHAPES:
        raise ValueError(f"shape={shape!r}, allowed: {', '.join(SHAPES)}")
    return SHAPES[shape]


def _matrices(c: ModelConfig) -> dict[str, tuple[int, int]]:
    """A layer's projections and their [out, in]."""
    return {
        "self_attn.q_proj": (c.q_size, c.hidden_size),
        "self_attn.k_proj": (c.kv_size, c.hidden_size),
        "self_attn.v_proj": (c.kv_size, c.hidden_size),
        "self_attn.o_proj": (c.hidden_size, c.q_size),
        "mlp.gate_proj": (c.intermediate_size, c.hidden_size),
        "mlp.up_proj": (c.intermediate_size, c.hidden_size),
        "mlp.down_proj": (c.hidden_size, c.intermediate_size),
    }


def _norms(c: ModelConfig) -> dict[str, int]:
    return {
        "input_layernorm": c.hidden_size,
        "post_attention_layernorm": c.hidden_size,
        "self_attn.q_norm": c.head_dim,
        "self_attn.k_norm": c.head_dim,
    }


def _drawer(seed: int) -> Callable[[int, int, float], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda rows, columns, std: torch.randn(rows, columns, generator=generator) * std


def _write(tensors: Named, config: ModelConfig, directory: Path) -> None:
    """Tensors as they come, in shards of at most SHARD_BYTES, so that no more than one shard is ever held."""
    dtype: torch.dtype = getattr(torch, config.dtype)
    shards: list[list[str]] = []
    held: dict[str, Tensor] = {}

    def flush() -> None:
        save_file(held, directory / f"shard-{len(shards)}.safetensors", metadata={"format": "pt"})
        shards.append(list(held))
        held.clear()

    total = 0
    for name, tensor in tensors:
        ready = tensor.to(dtype).contiguous()
        if held and sum(t.nbytes for t in held.values()) + ready.nbytes > SHARD_BYTES:
            flush()
        held[name] = ready
        total += ready.nbytes
    flush()
    if len(shards) == 1:
        (directory / "shard-0.safetensors").rename(directory / "model.safetensors")
    else:
        weight_map = {}
        for i, names in enumerate(shards):
            final = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
            (directory / f"shard-{i}.safetensors").rename(directory / final)
            weight_map |= dict.fromkeys(names, final)
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    write_configs(config, directory)
