"""A training run's state on disk: weights, optimiser state, the step reached. Written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from qwen3lab.nano.checkpoint import new_directory, write_json
from qwen3lab.nano.network import Network

Optimizers = dict[str, torch.optim.Optimizer]


def save_state(
    directory: Path, network: Network, optimizers: Optimizers, identity: dict[str, Any], step: int, trained_s: float
) -> None:
    """`identity` are the options that make the run this run and not another."""
    tensors = {f"weights/{n}": p.detach().cpu().contiguous() for n, p in network.state_dict().items()}
    for name, optimizer in optimizers.items():
        for index, slots in optimizer.state_dict()["state"].items():
            for slot, value in slots.items():
                tensors[f"{name}/{index}/{slot}"] = value.detach().cpu().contiguous()
    with new_directory(directory, replace=True) as out:
        save_file(tensors, out / "state.safetensors")
        write_json(out / "state.json", {"identity": identity, "step": step, "trained_s": trained_s})


def load_state(
    directory: Path, network: Network, optimizers: Optimizers, identity: dict[str, Any]
) -> tuple[int, float]:
    """Restore in place; the step to go on with and the seconds trained so far, (0, 0.0) where nothing was saved.

    Raises ValueError naming an option in which the saved run differs from this one.
    """
    if not (directory / "state.json").exists():
        return 0, 0.0
    saved = json.loads((directory / "state.json").read_text(encoding="utf-8"))
    for name, value in identity.items():
        if saved["identity"].get(name) != value:
            raise ValueError(
                f"{directory}: saved with {name}={saved['identity'].get(name)!r}, now {value!r}; "
                "give the same option, or another --out"
            )
    tensors = load_file(directory / "state.safetensors")
    network.load_state_dict({n.removeprefix("weights/"): t for n, t in tensors.items() if n.startswith("weights/")})
    for name, optimizer in optimizers.items():
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith(f"{name}/"):
                _, index, slot = key.split("/")
                state.setdefault(int(index), {})[slot] = value
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return int(saved["step"]), float(saved["trained_s"])
