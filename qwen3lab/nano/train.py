"""The recipe of the small model: a prepared corpus folder in, a checkpoint out. `python -m qwen3lab.nano.train --help`.

Every batch is made from (seed, step), so a run stopped anywhere resumes with weights, optimiser state and step number
alone. What happened goes to OUT/log.jsonl, the state to OUT/state, the finished model to OUT/checkpoint.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from qwen3lab.nano import pieces
from qwen3lab.nano.card import write_card
from qwen3lab.nano.checkpoint import new_directory, write_checkpoint
from qwen3lab.nano.evaluate import evaluate, load_tasks
from qwen3lab.nano.muon import Muon
from qwen3lab.nano.network import Network, rope_table
from qwen3lab.nano.options import TrainOptions
from qwen3lab.nano.samples import CONTINUATION, KIND_NAMES, PROMPT, Sampler
from qwen3lab.nano.shapes import SHAPES
from qwen3lab.nano.state import load_state, save_state

# Which fused attention torch may take, in the order of preference; every build has the last.
_ATTENTION = {
    "flash": [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH],
    "cudnn": [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH],
}


class _Batches(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Item `step` is that step's batch; made in worker processes, handed over in order."""

    def __init__(self, o: TrainOptions) -> None:
        self._sampler = Sampler(pieces.Pieces.load(o.corpus), o.row_tokens + 1)
        self._seed, self._rows = o.seed, o.rows

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        tokens, kinds = self._sampler.batch(self._seed, step, self._rows)
        return torch.from_numpy(tokens), torch.from_numpy(kinds)

    def loader(self, steps: range, workers: int, pin: bool) -> Iterator[tuple[Tensor, Tensor]]:
        prefetch = {"prefetch_factor": 4} if workers else {}
        return iter(
            torch.utils.data.DataLoader(
                self, batch_size=None, sampler=steps, num_workers=workers, pin_memory=pin, **prefetch
            )
        )


def build_optimizers(network: Network, o: TrainOptions) -> dict[str, torch.optim.Optimizer]:
    """Hidden matrices to Muon (or AdamW), everything else to AdamW; each group remembers its full learning rate."""
    hidden = [p for n, p in network.named_parameters() if p.ndim == 2 and "embed_tokens" not in n]
    rest = [p for n, p in network.named_parameters() if p.ndim != 2 or "embed_tokens" in n]
    adam: dict[str, Any] = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0, "fused": True}
    matrices = Muon(hidden, o.matrix_lr) if o.optimizer == "muon" else torch.optim.AdamW(hidden, o.matrix_lr, **adam)
    optimizers = {"matrices": matrices, "rest": torch.optim.AdamW(rest, o.other_lr, **adam)}
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group["full_lr"] = group["lr"]
    return optimizers


def batch_loss(network: Network, tokens: Tensor, kinds: Tensor, rope: tuple[Tensor, Tensor], weights: Tensor) -> Tensor:
    """tokens, kinds [B, T + 1] → [1 + 3 · kinds]: the weighted loss, then per kind its tokens, loss sum and hits."""
    tokens, kinds = tokens.long(), kinds[:, 1:].long()
    logits = network(tokens[:, :-1], *rope).float()
    targets = tokens[:, 1:]
    nll = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    hit = (logits.argmax(-1) == targets).float()
    weight = weights[kinds]
    loss = (nll * weight).sum() / weight.sum()
    of_kind = [(kinds == k).float() for k in range(len(KIND_NAMES))]
    sums = [s for m in of_kind for s in (m.sum(), (m * nll.detach()).sum(), (m * hit).sum())]
    return torch.stack([loss, *sums])


def train(o: TrainOptions) -> Path | None:
    """Train, resuming from OUT/state where there is one; the checkpoint's path once all is done, else None."""
    started = time.perf_counter()
    manifest = pieces.check(o.corpus)
    network = Network(replace(SHAPES[o.shape], vocab_size=int(str(manifest["vocab_size"]))))
    network.initialise(o.seed)
    batches = _Batches(o)
    o.out.mkdir(parents=True, exist_ok=True)
    device = torch.device(o.device)
    network.to(device)
    optimizers = build_optimizers(network, o)
    state_dir = o.out / "state"
    first, spent_s = (0, 0.0) if o.probe_s else load_state(state_dir, network, optimizers, o.identity)
    # Workers are forked here, before this process starts threads of its own on the device.
    loader = batches.loader(range(first, o.steps), o.workers, device.type == "cuda")
    loss_of = torch.compile(batch_loss, dynamic=False) if o.compile else batch_loss
    rope = rope_table(o.row_tokens, network.shape.head_dim, network.shape.rope.theta, device)
    weights = torch.ones(len(KIND_NAMES), device=device)
    weights[PROMPT], weights[CONTINUATION] = o.prompt_weight, o.continuation_weight
    tasks = load_tasks(o.corpus)
    log = _Log(o.out / ("probe.jsonl" if o.probe_s else "log.jsonl"))
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    log(event="start", step=first, options=o.plain, torch=torch.__version__, device=where, corpus=manifest)

    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    limit_s = o.probe_s or o.stop_after_s or float("inf")
    sums, since, since_step = torch.zeros(1 + 3 * len(KIND_NAMES), device=device), time.perf_counter(), first
    step = first
    for step in range(first, o.steps):
        tokens, kinds = (x.to(device, non_blocking=True) for x in next(loader))
        with (
            sdpa_kernel(_ATTENTION[o.attention], set_priority=True),
            torch.autocast(device.type, dtype, enabled=dtype != torch.float32),
        ):
            result = loss_of(network, tokens, kinds, rope, weights)
        result[0].backward()
        sums += result.detach()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0, foreach=True)
        for optimizer in optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = group["full_lr"] * o.learning_rate_factor(step)
            optimizer.step()
            optimizer.zero_grad()
        if (step + 1) % o.log_every == 0 or step == first:
            line = _summary(sums, step + 1 - since_step)  # waits for the device
            rate = (step + 1 - since_step) * o.rows * o.row_tokens / (time.perf_counter() - since)
            log(event="step", step=step + 1, tokens_per_s=round(rate), **line)
            sums.zero_()
            since, since_step = time.perf_counter(), step + 1
        if (step + 1) % o.evaluate_every == 0:
            log(event="evaluation", step=step + 1, scores=[asdict(s) for s in evaluate(network, tasks[::3], dtype)])
            since = time.perf_counter()
        if step == first and o.probe_s:
            started = time.perf_counter()  # a probe is of the speed, not of the compiler
        if time.perf_counter() - started > limit_s:
            break
    done = step + 1 if first < o.steps else o.steps
    spent_s += time.perf_counter() - started
    if o.probe_s:
        return None
    save_state(state_dir, network, optimizers, o.identity, done, spent_s)
    log(event="saved", step=done, trained_s=round(spent_s, 1), tokens=done * o.rows * o.row_tokens)
    return finish(network, o, log) if done == o.steps else None


def finish(network: Network, o: TrainOptions, log: _Log) -> Path:
    """Round the weights to bf16, ask the held-out tasks of what is left, and write OUT/checkpoint with its card."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(parameter.bfloat16())
    tasks = load_tasks(o.corpus)
    # bf16 on a CPU without its units takes minutes, and the weights are rounded either way.
    on_device = next(network.parameters()).is_cuda
    for dtype in (torch.bfloat16, torch.float32) if on_device else (torch.float32,):
        scores = [asdict(s) for s in evaluate(network, tasks, dtype)]
        log(event="final", step=o.steps, dtype=str(dtype).removeprefix("torch."), scores=scores)
    with new_directory(o.out / "checkpoint", replace=True) as directory:
        write_checkpoint(network.state_dict(), network.shape, o.corpus, directory)
        write_card(o.out / "log.jsonl", directory / "card.md")
    return o.out / "checkpoint"


def _summary(sums: Tensor, steps: int) -> dict[str, float]:
    loss, *per_kind = sums.tolist()
    line = {"loss": round(loss / steps, 4)}
    for k, name in enumerate(KIND_NAMES):
        count, nll, hits = per_kind[3 * k : 3 * k + 3]
        if count:
            line |= {f"{name}_loss": round(nll / count, 5), f"{name}_accuracy": round(hits / count, 5)}
            line |= {f"{name}_tokens": int(count)}
    return line


class _Log:
    """JSON lines, appended and printed as they come."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, **entry: Any) -> None:
        text = json.dumps(entry)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
        print(text if len(text) < 2000 else text[:400] + " …", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the small model from a prepared corpus; resumes by itself.")
    for f in fields(TrainOptions):
        flag = f"--{f.name.replace('_', '-')}"
        if f.name in ("corpus", "out"):
            parser.add_argument(flag, type=Path, required=True)
        elif isinstance(f.default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=f.default)
        else:
            parser.add_argument(flag, type=type(f.default), default=f.default)
    train(TrainOptions(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
