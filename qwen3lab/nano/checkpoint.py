"""Writing a checkpoint directory whole or not at all."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from qwen3lab.model_config import ModelConfig
from qwen3lab.nano.shapes import config_json, generation_json

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@contextmanager
def new_directory(out: Path, replace: bool = False) -> Iterator[Path]:
    """A temporary directory beside `out` that becomes `out` when the block ends well, and is removed when it does not.

    Raises FileExistsError where `out` is already there, unless `replace`.
    """
    if out.exists() and not replace:
        raise FileExistsError(f"{out}: already there; choose another directory or remove it first")
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        temporary.chmod(0o755)
        yield temporary
        if out.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{out.name}.old.", dir=out.parent))
            out.rename(old / out.name)
            temporary.rename(out)
            shutil.rmtree(old)
        else:
            temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def write_configs(shape: ModelConfig, directory: Path) -> None:
    write_json(directory / "config.json", config_json(shape))
    write_json(directory / "generation_config.json", generation_json(shape))


def copy_tokenizer(source: Path, directory: Path) -> None:
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, directory / name)


def write_checkpoint(weights: Mapping[str, Tensor], shape: ModelConfig, tokenizer_from: Path, directory: Path) -> None:
    """One bf16 safetensors file, its configs and its tokenizer, into an existing directory."""
    rounded = {name: w.detach().to("cpu", torch.bfloat16).contiguous() for name, w in weights.items()}
    save_file(rounded, directory / "model.safetensors", metadata={"format": "pt"})
    write_configs(shape, directory)
    copy_tokenizer(tokenizer_from, directory)
