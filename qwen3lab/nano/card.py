"""The model card, written from the training run's own log and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_card(log: Path, out: Path) -> None:
    """Read log.jsonl, write card.md. Raises ValueError where the run has not come to its final evaluation."""
    entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    finals = {e["dtype"]: e["scores"] for e in entries if e["event"] == "final"}
    if not finals:
        raise ValueError(f"{log}: holds no final evaluation; train to the last step first")
    start = [e for e in entries if e["event"] == "start"][-1]
    saved = [e for e in entries if e["event"] == "saved"][-1]
    seen = _tokens_by_kind(entries)
    o, corpus = start["options"], start["corpus"]
    text = f"""# The small model

A Qwen3ForCausalLM with three skills: continuing Python, renaming a name in Python, quoting a function by its name.
It exists so that an inference engine can be tested and timed on sensible text without a download; it is no assistant.

## Data

{corpus["source"]}, as shipped with Python {corpus["python"]}: {corpus["training_files"]} files,
{corpus["training_characters"]:,} characters, {corpus["training_functions"]:,} functions; sha256 of the text
`{corpus["corpus_sha256"]}`. Licence of the data: the PSF licence. Held out by the hash of the path, and never trained
on: {len(corpus["held_out_files"])} files with functions (the library's tests not counted), from which
{corpus["held_out_tasks"]} tasks were made under their original names.

## Recipe

`qwen3lab checkpoint train`, or `python -m qwen3lab.nano.train`, at commit `{o["commit"]}`, seed {o["seed"]}:
{saved["step"]:,} steps of {o["rows"]} rows of {o["row_tokens"]} tokens, {saved["tokens"]:,} tokens in all
({seen});
{o["optimizer"]} for the hidden matrices (learning rate {o["matrix_lr"]}), AdamW for the rest ({o["other_lr"]}),
{o["warmup_steps"]} steps of warm-up, linear decay to zero over the last {o["decay_share"]:.0%}.
{saved["trained_s"] / 60:.1f} minutes on one {start["device"]}, torch {start["torch"]}. Every sample is made fresh:
names, numbers and words are replaced at random, and some samples are noise to copy.

## Held-out tasks

Teacher forcing, with the weights as shipped (bf16). Exact: every token of the answer and its end right, which is what
greedy decoding then writes.

{_table(finals)}
"""
    out.write_text(text, encoding="utf-8")


def _tokens_by_kind(entries: list[dict[str, Any]]) -> str:
    kinds = ("edit", "quote", "continuation", "prompt")
    counts = {k: sum(e.get(f"{k}_tokens", 0) for e in entries if e["event"] == "step") for k in kinds}
    total = max(1, sum(counts.values()))
    names = {"edit": "edit answers", "quote": "quote answers", "continuation": "continuation", "prompt": "task prompts"}
    return ", ".join(f"{counts[k] / total:.0%} {names[k]}" for k in kinds)


def _table(finals: dict[str, list[dict[str, Any]]]) -> str:
    columns = ("arithmetic", "task", "size", "tasks", "answer tokens", "tokens right", "exact")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for dtype, scores in finals.items():
        for s in sorted(scores, key=lambda s: (s["kind"], s["size"] == "all", s["answer_tokens"])):
            lines.append(
                f"| {dtype} | {s['kind']} | {s['size']} | {s['tasks']} | {s['answer_tokens']:,} "
                f"| {s['token_accuracy']:.2%} | {s['exact']:.0%} |"
            )
    return "\n".join(lines)
