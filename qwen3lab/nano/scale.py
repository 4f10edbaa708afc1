"""Checkpoints of any Qwen3 shape: random ones, and the small model enlarged to exactly that shape, same function.

What carries the function is in enlarge.py. Layers beyond the source's write nothing: their o_proj and down_proj are
zero and everything else is random. Tensors are made and written one after another, so that memory stays at a shard
and the largest tensor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from qwen3lab.model_config import CheckpointError, ModelConfig
from qwen3lab.nano.checkpoint import copy_tokenizer, new_directory, write_configs
from qwen3lab.nano.enlarge import check, enlarged
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

    Raises CheckpointError where the source cannot be read, or the target is no multiple of its hidden size (from four
    times) and heads, or differs in head_dim, or is smaller anywhere.
    """
    small = ModelConfig.from_dir(source)
    large = _shape(shape)
    check(small, large)
    large = replace(
        large,
        rope=small.rope,
        rms_norm_eps=small.rms_norm_eps,
        max_position_embeddings=small.max_position_embeddings,
        dtype=small.dtype,
        eos_token_ids=small.eos_token_ids,
    )
    weights = _read(source, small)
    draw = _drawer(seed)

    def tensors() -> Named:
        yield from enlarged(weights, small, large)
        for i in range(small.num_layers, large.num_layers):
            for name, (rows, columns) in _matrices(large).items():
                silent = name.endswith(("o_proj", "down_proj"))
                weight = torch.zeros(rows, columns) if silent else draw(rows, columns, 1 / columns**0.5)
                yield f"model.layers.{i}.{name}.weight", weight
            for name, size in _norms(large).items():
                yield f"model.layers.{i}.{name}.weight", torch.ones(size)

    with new_directory(out) as directory:
        _write(tensors(), large, directory)
        copy_tokenizer(source, directory)
        (directory / "card.md").write_text(_card(source, small, large), encoding="utf-8")
    return out


def _read(source: Path, config: ModelConfig) -> dict[str, Tensor]:
    file = source / "model.safetensors"
    if not file.is_file():
        raise CheckpointError(f"{file}: not there; only a checkpoint in one file can be enlarged")
    try:
        weights = load_file(file)
    except SafetensorError as error:
        raise CheckpointError(f"{file}: cannot be read ({error}); copy the checkpoint again") from error
    names = {"model.embed_tokens.weight", "model.norm.weight"}
    for i in range(config.num_layers):
        names |= {f"model.layers.{i}.{name}.weight" for name in (*_matrices(config), *_norms(config))}
    if missing := sorted(names - weights.keys()):
        raise CheckpointError(f"{file}: holds no {missing[0]}; copy the checkpoint again")
    return weights


def _card(source: Path, small: ModelConfig, large: ModelConfig) -> str:
    return f"""# {source.name}, enlarged

The function of `{source.name}` (hidden {small.hidden_size}, {small.num_layers} layers, vocabulary {small.vocab_size})
in another shape: hidden {large.hidden_size}, {large.num_layers} layers, {large.num_heads} query and
{large.num_kv_heads} KV heads, MLP {large.intermediate_size}, vocabulary {large.vocab_size}. It knows no more than
`{source.name}` does; it is there to measure speed at this size on sensible text. Ids from {small.vocab_size} on mean
nothing and are never chosen. The data, their licence and the training: see the card of `{source.name}`.
"""


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
    return lambda rows, columns, std: torch.randn(rows, columns, generator=generator).mul_(std)


def _write(tensors: Named, config: ModelConfig, directory: Path) -> None:
    """Tensors as they come, in shards of at most SHARD_BYTES, so that no more than one shard is ever held."""
    dtype: torch.dtype = getattr(torch, config.dtype)
    shards: list[list[str]] = []
    held: dict[str, Tensor] = {}

    def flush() -> None:
        shard = directory / f"shard-{len(shards)}.safetensors"
        save_file(held, shard, metadata={"format": "pt"})
        shard.chmod(0o644)  # safetensors leaves it to its owner alone
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
