"""From a Hugging Face Qwen3 directory (or hub id) to `Weights`. Safetensors only: no pickle, no remote code.

Every tensor the model needs must be there, of the right shape and finite; anything else is an error that names it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from qwen3lab.model.qwen3 import LayerWeights, Weights
from qwen3lab.model_config import CheckpointError, ModelConfig

HUB_FILES = ("*.safetensors", "*.json", "*.jinja")
Pack = Callable[[torch.Tensor], torch.Tensor]
# Written by some exporters, computed here: rotary frequencies.
IGNORED = re.compile(r".*rotary_emb\.inv_freq")


def resolve(model: str | Path) -> Path:
    """The directory of a checkpoint: a local path, or a hub id ("org/name"), fetched unless cached."""
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise CheckpointError(f"{path}: is a file; a checkpoint is a directory with config.json in it")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(model)) or str(model).startswith("."):
        raise CheckpointError(f"{model}: no such directory, and not a hub id (organisation/name)")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(model), allow_patterns=list(HUB_FILES)))
    except Exception as error:
        raise CheckpointError(
            f"{model}: no such directory here, and the hub did not give it ({type(error).__name__}: {error}). "
            "Give the path of a local checkpoint, or connect to the network."
        ) from error


def load(path: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device, pack: Pack) -> Weights:
    """All weights of the checkpoint at `path`, in `dtype` on `device`, projections as `pack` leaves them."""
    with ExitStack() as stack:
        tensors = _open(path, stack)
        read = _Reader(tensors, path, dtype, device)
        weights = _assemble(read, config, pack)
    unused = [name for name in tensors if name not in read.taken and not IGNORED.fullmatch(name)]
    # A tied checkpoint may carry its head a second time; the embedding is the one that counts.
    unused = [name for name in unused if not (name == "lm_head.weight" and config.tie_word_embeddings)]
    if unused:
        shown = ", ".join(sorted(unused)[:5])
        raise CheckpointError(f"{path}: {len(unused)} tensors that Qwen3 has no place for, such as {shown}")
    return weights


def _open(path: Path, stack: ExitStack) -> dict[str, Any]:
    """Every tensor's name and the open file that holds it."""
    index = path / "model.safetensors.index.json"
    if index.exists():
        try:
            weight_map: dict[str, str] = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
            names = sorted({str(name) for name in weight_map.values()})
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{index}: no readable weight_map ({error}); fetch the checkpoint again") from None
        for name in names:
            if Path(name).name != name:
                raise CheckpointError(f"{index}: shard {name!r} is not a plain file name in the same directory")
            if not (path / name).is_file():
                raise CheckpointError(f"{path / name}: named by {index.name} and missing; fetch the checkpoint again")
    else:
        names = ["model.safetensors"] if (path / "model.safetensors").is_file() else []
        if not names:
            pickles = sorted(p.name for p in path.glob("*.bin")) + sorted(p.name for p in path.glob("*.pt*"))
            why = (
                f"only {pickles[0]}, which is pickle and could run code; convert it to safetensors"
                if pickles
                else "no model.safetensors and no model.safetensors.index.json"
            )
            raise CheckpointError(f"{path}: {why}")
    tensors: dict[str, Any] = {}
    for name in names:
        try:
            shard = stack.enter_context(safe_open(path / name, framework="pt"))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path / name}: cannot be read ({error}); fetch it again") from None
        tensors.update(dict.fromkeys(shard.keys(), shard))
    if index.exists() and (absent := sorted(set(weight_map) - set(tensors))):
        raise CheckpointError(
            f"{path}: {index.name} lists {absent[0]}, which is in no shard; fetch the checkpoint again"
        )
    return tensors


class _Reader:
    """Reads named tensors, checks each, and remembers which were wanted."""

    def __init__(self, tensors: dict[str, Any], path: Path, dtype: torch.dtype, device: torch.device) -> None:
        self.tensors, self.path, self.dtype, self.device = tensors, path, dtype, device
        self.taken: set[str] = set()

    def __call__(self, name: str, *shape: int) -> torch.Tensor:
        return self.joined([name], shape[1:], [shape[0]])

    def joined(self, names: list[str], tail: tuple[int, ...], rows: list[int]) -> torch.Tensor:
        """Tensors of `rows` rows each, stacked into one [Σ rows, *tail]; no second copy is ever held."""
        out = torch.empty(sum(rows), *tail, dtype=self.dtype, device=self.device)
        for part, name, count in zip(out.split(rows), names, rows, strict=True):
            if name not in self.tensors:
                raise CheckpointError(f"{self.path}: tensor {name} is missing")
            tensor = self.tensors[name].get_tensor(name)
            if tuple(tensor.shape) != (count, *tail):
                raise CheckpointError(
                    f"{self.path}: tensor {name} has shape {list(tensor.shape)}, config.json says {[count, *tail]}"
                )
            if not tensor.is_floating_point():
                raise CheckpointError(
                    f"{self.path}: tensor {name} is {tensor.dtype}; quantised weights are not supported"
                )
            part.copy_(tensor)
            if not bool(torch.isfinite(part).all()):
                raise CheckpointError(
                    f"{self.path}: tensor {name} holds NaN or infinity (as {self.dtype}); fetch it again"
                )
            self.taken.add(name)
        return out


def _assemble(read: _Reader, c: ModelConfig, pack: Pack) -> Weights:
    def layer(i: int) -> LayerWeights:
        def name(part: str) -> str:
            return f"model.layers.{i}.{part}.weight"

        def per_head(which: str, heads: int) -> torch.Tensor:
            return read(name(f"self_attn.{which}_norm"), c.head_dim).expand(heads, -1)

        qkv = [name(f"self_attn.{p}_proj") for p in "qkv"]
        gate_up = [name(f"mlp.{p}_proj") for p in ("gate", "up")]
        return LayerWeights(
            input_norm=read(name("input_layernorm"), c.hidden_size),
            qkv=pack(read.joined(qkv, (c.hidden_size,), [c.q_size, c.kv_size, c.kv_size])),
            qk_norm=torch.cat([per_head("q", c.num_heads), per_head("k", c.num_kv_heads)]),
            o=pack(read(name("self_attn.o_proj"), c.hidden_size, c.q_size)),
            post_attention_norm=read(name("post_attention_layernorm"), c.hidden_size),
            gate_up=pack(read.joined(gate_up, (c.hidden_size,), [c.intermediate_size] * 2)),
            down=pack(read(name("mlp.down_proj"), c.hidden_size, c.intermediate_size)),
        )

    embedding = read("model.embed_tokens.weight", c.vocab_size, c.hidden_size)
    return Weights(
        embedding=embedding,
        layers=tuple(layer(i) for i in range(c.num_layers)),
        norm=read("model.norm.weight", c.hidden_size),
        head=pack(embedding if c.tie_word_embeddings else read("lm_head.weight", c.vocab_size, c.hidden_size)),
    )
