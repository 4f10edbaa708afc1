"""Resident arms, run one at a time: warm-ups, blocks, and a look at the platform before, between and after."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tqdm.auto import tqdm

from qwen3lab.measure import health
from qwen3lab.measure.arms import ArmProcess
from qwen3lab.measure.schedule import Planned
from qwen3lab.measure.trials import Place, Trial, run_trial
from qwen3lab.measure.workloads import Workload

PATIENCE_S = 20.0
"""How long, in all, a session waits for a crowded platform to calm down before a round."""


class Session:
    """Loaded arms by label ("A", "B"), the trials they ran, in order, and what the platform was like at rest."""

    def __init__(
        self,
        processes: Mapping[str, ArmProcess],
        workloads: Sequence[Workload],
        bar: tqdm[Any],
        keep: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        """`keep` is called with each trial when it has run, as JSON values."""
        self._processes = dict(processes)
        self._workloads = {w.id: w for w in workloads}
        self._bar = bar
        self._keep = keep
        self._pids = [process.pid for process in processes.values()]
        self._patience_s = PATIENCE_S
        # As many blocks may be measured again as there are workloads, about one more round.
        self._repeats_left = len(self._workloads)
        self._next_block = dict.fromkeys(self._workloads, 0)
        self.log: list[Trial] = []
        self.rest: list[dict[str, Any]] = []

    def warm_up(self) -> None:
        """Every workload once by every arm, so that prefill and decode have seen each shape. Kept, and flagged."""
        for workload in self._workloads.values():
            for label in self._processes:
                self._run(Place(workload, label))

    def look(self, when: str, wait: bool = False) -> None:
        """Judge the platform while nothing of ours runs; with `wait`, until it no longer rejects or patience ends."""
        threads = max(process.threads for process in self._processes.values())
        found, waited_s = health.wait_until_fit([*self._pids, os.getpid()], threads, self._patience_s if wait else 0.0)
        if wait:
            self._patience_s = max(0.0, self._patience_s - waited_s)
        self.rest.append({"when": when, **found.to_dict()})

    def run_round(self, planned: Sequence[Planned]) -> None:
        """The blocks of a round; one that the platform spoilt is run again at its end, as long as repeats are left.

        A spoilt block that is run again stays in the log as rejected and does not count; one that cannot be run again
        counts, flagged.
        """
        queue = deque(planned)
        while queue:
            block = queue.popleft()
            found = self._run_block(block)
            if any(trial.health.status == "reject" for trial in found):
                if self._repeats_left:
                    self._repeats_left -= 1
                    self._bar.total = (self._bar.total or 0) + len(block.order)
                    queue.append(block)
                else:
                    found = [_counted(trial) for trial in found]
            self.log += found

    def _run_block(self, block: Planned) -> list[Trial]:
        """Four trials in the block's order. Its number says when it began: a block run again has another."""
        workload = self._workloads[block.workload]
        number = self._next_block[block.workload]
        self._next_block[block.workload] += 1
        first_id = len(self.log)
        return [
            self._trial(Place(workload, label, number, slot), first_id + slot) for slot, label in enumerate(block.order)
        ]

    def _run(self, place: Place) -> None:
        self.log.append(self._trial(place, len(self.log)))

    def _trial(self, place: Place, trial_id: int) -> Trial:
        process = self._processes[place.arm]
        self._bar.set_description(f"{place.workload.id} · {process.arm.name}")
        trial = run_trial(process, place, trial_id, self._pids)
        self._bar.update()
        if self._keep is not None:
            self._keep(trial.to_dict())
        return trial


def _counted(trial: Trial) -> Trial:
    """A rejected trial that counts all the same, because no repeats are left."""
    if trial.health.status != "reject":
        return trial
    reasons = (*trial.health.reasons, "rejected, and kept: no repeats are left")
    return replace(trial, health=replace(trial.health, status="flag", reasons=reasons))
