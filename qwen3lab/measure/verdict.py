"""A verdict: one workload, one metric, two arms. Computed from blocks and from the token comparison, never typed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from qwen3lab.measure.outputs import TokenWord
from qwen3lab.measure.stats import CONFIDENCE, Block, Estimate, Word, estimate, word
from qwen3lab.measure.trials import Trial


@dataclass(frozen=True)
class Verdict:
    """ratio = time of B / time of A, so under 1 says that B is faster.

    tokens  what the token comparison found over all runs. "real": the ratio is shown, but nothing is claimed from it;
            "unchecked": there is no ratio; "within-rounding": not tokens but tensors, each as near to fp64 as it can be
    note    why there is no claim, or how the platform was; empty where there is nothing to say
    """

    workload: str
    metric: str
    arm_a: str
    arm_b: str
    ratio: float | None
    ci_low: float | None
    ci_high: float | None
    n_blocks: int
    margin: float
    word: Word
    tokens: TokenWord | Literal["within-rounding"]
    note: str = ""
    estimate: Estimate | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def decide(
    trials: Sequence[Trial],
    workload: str,
    metric: str,
    names: tuple[str, str],
    tokens: TokenWord,
    margin: float,
    seed: int,
    confidence: float = CONFIDENCE,
) -> Verdict:
    """The verdict on one workload and metric from its trials; `confidence` is that of its interval."""
    blocks, flagged = blocks_of(trials, workload, metric)

    def verdict(found: Estimate | None, said: Word, note: str) -> Verdict:
        ratio, low, high = (found.ratio, found.ci_low, found.ci_high) if found else (None, None, None)
        return Verdict(workload, metric, *names, ratio, low, high, len(blocks), margin, said, tokens, note, found)

    if tokens == "unchecked":
        return verdict(None, "undecided", "no ratio: the arms' tokens were not compared")
    if not blocks:
        return verdict(None, "undecided", f"no block has {metric} in all four slots")
    found = estimate(blocks, confidence, seed)
    if tokens == "real":
        return verdict(found, "undecided", "no claim: the arms' tokens differ by more than near ties")
    note = f"{flagged} of {len(blocks)} blocks with a flagged platform" if flagged else ""
    return verdict(found, word(found.ci_low, found.ci_high, margin), note)


def blocks_of(trials: Sequence[Trial], workload: str, metric: str) -> tuple[list[Block], int]:
    """The whole blocks of a workload that count, in order, and how many of them hold a flagged trial.

    A block with a rejected trial does not count, and neither does one in which a slot does not have the metric.
    """
    by_block: dict[int, list[Trial]] = {}
    for trial in trials:
        if trial.place.workload.id == workload and not trial.place.warmup:
            by_block.setdefault(trial.place.block_id, []).append(trial)
    blocks, flagged = [], 0
    for _, members in sorted(by_block.items()):
        members.sort(key=lambda t: t.place.slot)
        values = [t.value(metric) for t in members]
        if len(members) != 4 or any(t.health.status == "reject" for t in members) or None in values:
            continue
        first, second, third, fourth = (v for v in values if v is not None)
        blocks.append(Block("".join(t.place.arm for t in members), (first, second, third, fourth)))
        flagged += any(t.health.status == "flag" for t in members)
    return blocks, flagged
