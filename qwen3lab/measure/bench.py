"""One engine alone: its own numbers on each workload. No comparison is made here; that takes two arms (`abba`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
from tqdm.auto import tqdm

from qwen3lab.measure import health, machine, metrics, trials
from qwen3lab.measure.arms import Arm, ArmProcess
from qwen3lab.measure.comparison import describe_arm
from qwen3lab.measure.metrics import METRICS, RequestTimes
from qwen3lab.measure.schedule import Planned
from qwen3lab.measure.session import Session
from qwen3lab.measure.trials import Trial
from qwen3lab.measure.workloads import Workload

PERCENTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Bench:
    """Every run of one arm. `label` is "A" in the frames."""

    arm: Arm
    facts: Mapping[str, Any]
    workloads: tuple[Workload, ...]
    log: tuple[Trial, ...]
    rest: list[dict[str, Any]]

    @cached_property
    def trials(self) -> pd.DataFrame:
        return trials.trials_frame(self.log)

    @cached_property
    def samples(self) -> pd.DataFrame:
        return trials.samples_frame(self.log)

    @property
    def outputs(self) -> dict[str, list[list[int]]]:
        """{workload: ids of each request}, from the first run."""
        return trials.first_outputs(self.log, "A")

    def summary(self) -> list[dict[str, Any]]:
        """Per workload and metric: unit, n, and the percentiles that n supports (else None). Warm-ups are left out."""
        return [
            {"workload": w.id, "metric": name, "unit": METRICS[name].unit, **_describe(values)}
            for w in self.workloads
            for name, values in _pooled([t for t in self.log if t.place.workload.id == w.id and not t.place.warmup])
        ]

    def describe(self) -> dict[str, Any]:
        """What goes with the numbers: plain JSON values."""
        return {
            "machine": machine.facts(),
            "libraries": machine.libraries(),
            "workloads": {w.id: w.sha256 for w in self.workloads},
            "metrics": {name: metric.to_dict() for name, metric in METRICS.items()},
            "arms": [describe_arm("A", self.arm, self.facts)],
            "health": {"at_rest": self.rest, "trials": trials.health_log(self.log)},
        }

    def _repr_html_(self) -> str:
        frame = pd.DataFrame(self.summary())
        return str(frame.to_html(index=False, float_format="{:.4g}".format, na_rep="–", border=0))


def bench(arm: Arm, workloads: Sequence[Workload], repeats: int = 3, progress: bool = True) -> Bench:
    """Run each workload `repeats` times after one warm-up. Raises ValueError, ArmFailed, UnequalWork."""
    if repeats < 1:
        raise ValueError(f"repeats={repeats}, allowed: at least 1")
    before = {"when": "before loading", **health.at_rest().to_dict()}
    with ExitStack() as stack:
        process = stack.enter_context(ArmProcess(arm))
        bar = stack.enter_context(tqdm(total=len(workloads) * (1 + repeats), unit="run", disable=not progress))
        session = Session({"A": process}, workloads, bar)
        session.warm_up()
        for number in range(repeats):
            session.look(f"before pass {number}", wait=True)
            session.run_round([Planned(w.id, number, "A") for w in workloads])
        session.look("after the last pass")
    return Bench(arm, process.facts, tuple(workloads), tuple(session.log), [before, *session.rest])


def _pooled(runs: Sequence[Trial]) -> list[tuple[str, list[float]]]:
    """Every value of every metric over `runs`, of trials, of requests or of gaps; what does not exist is left out."""
    per_trial: dict[str, Callable[[Sequence[RequestTimes]], float | None]] = {
        "wall_s": metrics.wall_s,
        "output_tok_per_s": metrics.output_tok_per_s,
        "total_tok_per_s": metrics.total_tok_per_s,
        "worst_stall_s": metrics.worst_stall_s,
    }
    per_request: dict[str, Callable[[RequestTimes], float | None]] = {
        "ttft_s": metrics.ttft_s,
        "tpot_s": metrics.tpot_s,
        "e2e_s": metrics.e2e_s,
    }
    pooled = [(name, [v for t in runs if (v := f(t.requests)) is not None]) for name, f in per_trial.items()]
    pooled += [
        (name, [v for t in runs for r in t.requests if (v := g(r)) is not None]) for name, g in per_request.items()
    ]
    pooled.append(("itl_s", [gap for t in runs for r in t.requests for gap in metrics.itl_s(r)]))
    return pooled


def _describe(values: Sequence[float]) -> dict[str, Any]:
    quantiles = {f"p{q * 100:g}": metrics.percentile(values, q).value for q in PERCENTILES}
    return {"n": len(values), **quantiles, "max": max(values, default=None)}
