"""How well a network answers the held-out tasks: under teacher forcing, token by token and whole answers.

An answer is exact when every one of its tokens, <|endoftext|> included, is the network's first choice given the right
tokens before it; then greedy decoding, which would have had those same tokens before it, writes that very answer.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from qwen3lab.nano.network import Network, rope_table
from qwen3lab.nano.tokenizer import END_ID

ROWS = 16


@dataclass(frozen=True)
class HeldOutTask:
    kind: str
    size: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class Score:
    """Over one group of tasks: tokens answered right of all, and answers exact of all."""

    kind: str
    size: str
    tasks: int
    answer_tokens: int
    token_accuracy: float
    exact: float


def load_tasks(folder: Path) -> list[HeldOutTask]:
    raw = json.loads((folder / "held_out.json").read_text(encoding="utf-8"))
    return [HeldOutTask(t["kind"], t["size"], tuple(t["prompt"]), (*t["answer"], END_ID)) for t in raw]


@torch.no_grad()
def right_tokens(network: Network, tasks: Sequence[HeldOutTask], dtype: torch.dtype) -> list[torch.Tensor]:
    """For each task, which answer tokens are the first choice: bool [answer]. `dtype` is that of the arithmetic."""
    device = next(network.parameters()).device
    found: dict[int, torch.Tensor] = {}
    by_length = sorted(range(len(tasks)), key=lambda i: len(tasks[i].prompt) + len(tasks[i].answer))
    precision = nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)
    for start in range(0, len(tasks), ROWS):
        some = by_length[start : start + ROWS]
        length = max(len(tasks[i].prompt) + len(tasks[i].answer) for i in some)
        ids = torch.zeros(len(some), length, dtype=torch.long)  # padding stands to the right, where no token looks
        for row, i in enumerate(some):
            whole = tasks[i].prompt + tasks[i].answer
            ids[row, : len(whole)] = torch.tensor(whole)
        cos, sin = rope_table(length, network.shape.head_dim, network.shape.rope.theta, device)
        with precision:
            choice = network(ids.to(device), cos, sin).argmax(-1).cpu()
        for row, i in enumerate(some):
            n, m = len(tasks[i].prompt), len(tasks[i].answer)
            found[i] = choice[row, n - 1 : n + m - 1] == ids[row, n : n + m]
    return [found[i] for i in range(len(tasks))]


def evaluate(network: Network, tasks: Sequence[HeldOutTask], dtype: torch.dtype = torch.bfloat16) -> list[Score]:
    """A Score for every kind and size, and one of all sizes for every kind."""
    groups: dict[tuple[str, str], list[torch.Tensor]] = defaultdict(list)
    for task, right in zip(tasks, right_tokens(network, tasks, dtype), strict=True):
        groups[task.kind, task.size].append(right)
        groups[task.kind, "all"].append(right)
    return [
        Score(
            kind=kind,
            size=size,
            tasks=len(rights),
            answer_tokens=sum(len(r) for r in rights),
            token_accuracy=float(torch.cat(rights).float().mean()),
            exact=sum(bool(r.all()) for r in rights) / len(rights),
        )
        for (kind, size), rights in groups.items()
    ]
