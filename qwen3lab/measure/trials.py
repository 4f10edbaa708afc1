"""What running a workload once leaves behind: rows, output ids, and how healthy the platform was meanwhile.

The block, slot, arm and order are written at run time, never reconstructed. Warm-ups are kept, and flagged as such.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from qwen3lab.measure import health, metrics
from qwen3lab.measure.arms import ArmProcess, RunResult
from qwen3lab.measure.health import Health
from qwen3lab.measure.workloads import Workload

Outputs = tuple[tuple[int, ...], ...]
"""The ids of every request of one run."""

WARMUP_BLOCK, WARMUP_SLOT = -1, -1
"""A warm-up belongs to no block."""


class UnequalWork(RuntimeError):
    """An arm produced another number of tokens than was asked: two such runs are not the same work."""


@dataclass(frozen=True)
class Place:
    """Where in the order a trial stands. `arm` is "A" or "B"; a warm-up is in no block."""

    workload: Workload
    arm: str
    block_id: int = WARMUP_BLOCK
    slot: int = WARMUP_SLOT

    @property
    def warmup(self) -> bool:
        return self.block_id == WARMUP_BLOCK


@dataclass(frozen=True)
class Trial:
    """One run of one workload by one arm, whose name `engine` is: an engine's, and what sets this one apart."""

    trial_id: int
    place: Place
    engine: str
    requests: tuple[metrics.RequestTimes, ...]
    outputs: Outputs
    health: Health
    peak_rss_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON values."""
        return {
            "trial_id": self.trial_id,
            "workload": self.place.workload.id,
            "arm": self.place.arm,
            "block_id": self.place.block_id,
            "slot": self.place.slot,
            "engine": self.engine,
            "health": self.health.to_dict(),
            "peak_rss_bytes": self.peak_rss_bytes,
            "requests": [
                {"arrival_s": r.arrival_s, "token_times_s": list(r.token_times_s), "token_ids": list(ids)}
                for r, ids in zip(self.requests, self.outputs, strict=True)
            ],
        }

    def value(self, metric: str) -> float | None:
        """One of metrics.TIME_METRICS, in seconds."""
        return metrics.trial_value(metric, self.requests)


def run_trial(process: ArmProcess, place: Place, trial_id: int, pids: Sequence[int]) -> Trial:
    """Run `place.workload` once in `process`, watching the platform over exactly that time.

    pids  of all resident arms: what the idle ones use is counted against the trial
    Raises ArmFailed where the arm gives no answer, UnequalWork where it produced another number of tokens than asked.
    """
    watched = (*pids, os.getpid())
    before = health.snapshot(watched)
    result = process.run(place.workload.requests)
    state = health.judge(before, health.snapshot(watched), process.pid, process.threads)
    _check_counts(process.arm.name, place.workload, result)
    return Trial(
        trial_id=trial_id,
        place=place,
        engine=process.arm.name,
        requests=tuple(
            metrics.RequestTimes(len(asked.prompt_token_ids), got.arrival_s, got.token_times_s)
            for asked, got in zip(place.workload.requests, result.requests, strict=True)
        ),
        outputs=tuple(r.token_ids for r in result.requests),
        health=state,
        peak_rss_bytes=result.peak_rss_bytes,
    )


def _check_counts(arm: str, workload: Workload, result: RunResult) -> None:
    for i, (asked, got) in enumerate(zip(workload.requests, result.requests, strict=True)):
        if len(got.token_ids) != asked.max_tokens:
            raise UnequalWork(
                f"arm {arm!r}, {workload.id}, request {i}: {len(got.token_ids)} tokens came back and "
                f"{asked.max_tokens} were asked (EOS is to be ignored); runs of unequal work are not compared"
            )


def trials_frame(trials: Sequence[Trial]) -> pd.DataFrame:
    """One row per trial."""
    return pd.DataFrame.from_records(
        [
            {
                "trial_id": t.trial_id,
                "workload": t.place.workload.id,
                "block_id": t.place.block_id,
                "slot": t.place.slot,
                "arm": t.place.arm,
                "engine": t.engine,
                "warmup": t.place.warmup,
                "wall_s": metrics.wall_s(t.requests),
                "prompt_tokens": sum(r.prompt_tokens for r in t.requests),
                "output_tokens": sum(r.output_tokens for r in t.requests),
                "output_tok_per_s": metrics.output_tok_per_s(t.requests),
                "health": t.health.status,
            }
            for t in trials
        ]
    )


def samples_frame(trials: Sequence[Trial]) -> pd.DataFrame:
    """One row per request of each trial, with every token's time (seconds since the trial's start)."""
    return pd.DataFrame.from_records(
        [
            {
                "trial_id": t.trial_id,
                "workload": t.place.workload.id,
                "block_id": t.place.block_id,
                "slot": t.place.slot,
                "arm": t.place.arm,
                "engine": t.engine,
                "warmup": t.place.warmup,
                "request": i,
                "prompt_tokens": r.prompt_tokens,
                "output_tokens": r.output_tokens,
                "ttft_s": metrics.ttft_s(r),
                "tpot_s": metrics.tpot_s(r),
                "e2e_s": metrics.e2e_s(r),
                "arrival_s": r.arrival_s,
                "token_times_s": list(r.token_times_s),
            }
            for t in trials
            for i, r in enumerate(t.requests)
        ]
    ).astype({"ttft_s": float, "tpot_s": float, "e2e_s": float})  # a column of nothing but None is still one of seconds


def distinct_outputs(trials: Sequence[Trial], workload: str) -> list[Outputs]:
    """What the arms answered to a workload, each answer once: arm A's first answer first, then all others."""
    mine = sorted((t for t in trials if t.place.workload.id == workload), key=lambda t: (t.place.arm, t.trial_id))
    return list(dict.fromkeys(t.outputs for t in mine))


def first_outputs(trials: Sequence[Trial], arm: str) -> dict[str, list[list[int]]]:
    """{workload: ids of each request} from an arm's first run of each."""
    result: dict[str, list[list[int]]] = {}
    for t in trials:
        if t.place.arm == arm:
            result.setdefault(t.place.workload.id, [list(ids) for ids in t.outputs])
    return result


def health_log(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Each trial's judgement with its readings."""
    return [{"trial_id": t.trial_id, **t.health.to_dict()} for t in trials]
