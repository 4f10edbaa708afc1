"""What a comparison leaves: every trial, every token, the verdicts, and what must be recorded beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from qwen3lab.measure import machine, trials
from qwen3lab.measure.arms import Arm, checkpoint_identity
from qwen3lab.measure.metrics import METRICS
from qwen3lab.measure.outputs import RequestDiff
from qwen3lab.measure.trials import Trial
from qwen3lab.measure.verdict import Verdict
from qwen3lab.measure.workloads import Workload

PARITY_AXES = ("dtype", "device", "threads")
"""What must be the same in both arms unless the difference is the question (then `differ` names it)."""


@dataclass(frozen=True)
class Comparison:
    """`arms` and `facts` are by label, "A" and "B"; `diffs` by workload; `rest` is the platform between the rounds."""

    arms: Mapping[str, Arm]
    facts: Mapping[str, dict[str, Any]]
    workloads: tuple[Workload, ...]
    log: tuple[Trial, ...]
    diffs: Mapping[str, list[RequestDiff]]
    verdicts: list[Verdict]
    settings: dict[str, Any]
    rest: list[dict[str, Any]]

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row per run, warm-ups included."""
        return trials.trials_frame(self.log)

    @cached_property
    def samples(self) -> pd.DataFrame:
        """One row per request of each run, with every token's time."""
        return trials.samples_frame(self.log)

    @property
    def setup(self) -> pd.DataFrame:
        """What each arm was set up with, axis by axis, and where the two differ: columns axis, A, B, same."""
        a, b = (self.facts[label] for label in "AB")
        setups = [{axis: arm.get(axis) for axis in PARITY_AXES} | dict(arm.get("setup", {})) for arm in (a, b)]
        rows = [(axis, setups[0].get(axis), setups[1].get(axis)) for axis in dict.fromkeys([*setups[0], *setups[1]])]
        frame = pd.DataFrame(
            [(axis, str(x), str(y), x == y) for axis, x, y in rows], columns=["axis", "A", "B", "same"]
        )
        return frame.rename(columns={"A": self.arms["A"].name, "B": self.arms["B"].name})

    @property
    def outputs(self) -> dict[str, dict[str, list[list[int]]]]:
        """{arm's name: {workload: ids of each request}}, from each arm's first run."""
        return {arm.name: trials.first_outputs(self.log, label) for label, arm in self.arms.items()}

    def describe(self) -> dict[str, Any]:
        """What a round records beside the frames: plain JSON values."""
        return {
            "machine": machine.facts(),
            "libraries": machine.libraries(),
            "workloads": {w.id: w.sha256 for w in self.workloads},
            "metrics": {name: metric.to_dict() for name, metric in METRICS.items()},
            "arms": [describe_arm(label, arm, self.facts[label]) for label, arm in self.arms.items()],
            "comparison": {
                **self.settings,
                "outputs": {workload: [d.to_dict() for d in diffs] for workload, diffs in self.diffs.items()},
                "health": {"at_rest": self.rest, "trials": trials.health_log(self.log)},
            },
        }

    def _repr_html_(self) -> str:
        shown = ["workload", "metric", "ratio", "ci_low", "ci_high", "n_blocks", "word", "tokens", "note"]
        frame = pd.DataFrame([{key: getattr(v, key) for key in shown} for v in self.verdicts], columns=shown)
        return str(frame.to_html(index=False, float_format="{:.3f}".format, na_rep="–", border=0))


def describe_arm(label: str, arm: Arm, facts: Mapping[str, Any]) -> dict[str, Any]:
    """An arm as it ran: its name, what was added to its environment, and what its worker reported."""
    return {"label": label, "name": arm.name, "model": checkpoint_identity(arm.model), "env": dict(arm.env), **facts}
