"""START HERE for a claim: two resident arms, run by turns in blocks A B B A or B A A B, and a verdict per workload.

    compare(rival, ours, [load("w1_single_decode")], blocks=5)

Each arm is loaded once; the idle one waits on its pipe. Every workload is run once by each arm before anything counts,
then blocks follow in the seeded order of `schedule`. The platform is judged before, over every trial, between rounds
and after. At the end the arms' tokens are compared, and only then is there a ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from tqdm.auto import tqdm

from qwen3lab.measure import health, nvml, schedule
from qwen3lab.measure.arms import Arm, ArmProcess, sharing
from qwen3lab.measure.comparison import PARITY_AXES, Comparison
from qwen3lab.measure.metrics import TIME_METRICS
from qwen3lab.measure.outputs import Oracle, RequestDiff, compare_many, near_tie_limit, worst
from qwen3lab.measure.session import Session
from qwen3lab.measure.stats import confidence_of, say
from qwen3lab.measure.trials import Trial, distinct_outputs
from qwen3lab.measure.verdict import blocks_of, decide
from qwen3lab.measure.workloads import Workload


class ArmsDiffer(ValueError):
    """The two arms are not set up for the same work."""


def compare(
    arm_a: Arm,
    arm_b: Arm,
    workloads: Sequence[Workload],
    blocks: int = 5,
    seed: int = 0,
    margin: float = 0.02,
    progress: bool = True,
    *,
    metrics: Sequence[str] = ("wall_s",),
    differ: Sequence[str] = (),
    limit: float | None = None,
    looks: Sequence[int] = (),
    log: Callable[[Mapping[str, Any]], None] | None = None,
) -> Comparison:
    """Measure `arm_b` against `arm_a` (A is the rival, B is ours) on `workloads`.

    blocks   per workload, of four runs each; an interval needs 2
    margin   the difference nobody minds, 0.02 for 2 %: inside it a verdict says "same"
    metrics  of metrics.TIME_METRICS; a verdict for each
    differ   of PARITY_AXES: in which the arms may differ because that is the question
    looks    after so many blocks a workload may end, if its first metric is decided; the last is `blocks`. Intervals
             are then as wide as stats.confidence_of says. None: every workload has all its blocks
    log      called with each trial as soon as its block has run, as JSON values: what is kept if the rest never runs
    limit    largest regret, in logits, that counts as a near tie; None takes outputs.NEAR_TIE_LIMITS
    Raises ValueError for arguments that make no comparison, ArmsDiffer, ArmFailed, UnequalWork.
    """
    _check_arguments(arm_a, arm_b, workloads, metrics, differ)
    if looks and looks[-1] != blocks:
        raise ValueError(f"looks={list(looks)}, allowed: the last is the number of blocks, {blocks}")
    confidence = confidence_of(looks)
    arms = sharing({"A": arm_a, "B": arm_b}, cards=len(nvml.read()))
    rounds = list(schedule.plan([w.id for w in workloads], blocks, seed))
    before = {"when": "before loading", **health.at_rest().to_dict()}
    with ExitStack() as stack:
        processes: dict[str, ArmProcess] = {}
        for label, arm in arms.items():  # both start before either is waited for: they load side by side
            processes[label] = ArmProcess(arm)
            stack.callback(processes[label].close)
        for process in processes.values():
            process.wait_ready()
        facts = {label: process.facts for label, process in processes.items()}
        differences = _check_parity(facts, differ)
        bar = stack.enter_context(tqdm(total=len(workloads) * (2 + 4 * blocks), unit="run", disable=not progress))
        session = Session(processes, workloads, bar, log)
        session.warm_up()
        going = [w.id for w in workloads]
        for number, turn in enumerate(rounds):
            session.look(f"before round {number}", wait=True)
            session.run_round([block for block in turn if block.workload in going])
            if number + 1 in looks:
                going = [w for w in going if not _decided(session.log, w, metrics[0], margin, confidence)]
            if not going:
                break
        session.look("after the last round")
    limit = near_tie_limit([f["dtype"] for f in facts.values()]) if limit is None else limit
    diffs = compare_tokens(session.log, workloads, arm_a, limit)
    names = (arm_a.name, arm_b.name)
    verdicts = [
        decide(session.log, w.id, metric, names, worst([d.word for d in diffs[w.id]]), margin, seed, confidence)
        for w in workloads
        for metric in metrics
    ]
    settings = {
        "blocks": blocks,
        "seed": seed,
        "margin": margin,
        "metrics": list(metrics),
        "looks": list(looks),
        "confidence": confidence,
        "estimator": "exp(mean over blocks of ½(ln B₁ + ln B₂) − ½(ln A₁ + ln A₂)); Student t interval",
        "residence": "both arms loaded throughout, the idle one waiting on its pipe",
        "differences": differences,
        "near_tie_limit": limit,
        "plan": [asdict(block) for turn in rounds for block in turn],
    }
    return Comparison(
        arms, facts, tuple(workloads), tuple(session.log), diffs, verdicts, settings, [before, *session.rest]
    )


def _decided(log: Sequence[Trial], workload: str, metric: str, margin: float, confidence: float) -> bool:
    """Whether the blocks so far say a word; tokens are compared at the end, and can only take a claim back."""
    blocks, _ = blocks_of(log, workload, metric)
    return len(blocks) >= 2 and say(blocks, margin, confidence) != "undecided"


def control(arm: Arm, workloads: Sequence[Workload], blocks: int = 5, **options: Any) -> Comparison:
    """The A/A run: `arm` against a second process of itself. Its verdicts should say "same"; what they show else is
    the noise that any claim on this machine carries. `options` are compare()'s."""
    return compare(arm, replace(arm, name=f"{arm.name} again"), workloads, blocks, **options)


def compare_tokens(
    log: Sequence[Trial], workloads: Sequence[Workload], arm: Arm, limit: float
) -> dict[str, list[RequestDiff]]:
    """Every answer any run gave, against arm A's first; an arm that contradicts itself shows here too.

    `arm` names the oracle's checkpoint and threads.
    """
    diffs = {}
    with Oracle(arm.model, arm.threads) as oracle:
        for workload in workloads:
            first, *others = distinct_outputs(log, workload.id)
            diffs[workload.id] = compare_many(workload, first, others, oracle.score, limit)
    return diffs


def _check_arguments(
    arm_a: Arm, arm_b: Arm, workloads: Sequence[Workload], metrics: Sequence[str], differ: Sequence[str]
) -> None:
    if arm_a.name == arm_b.name:
        raise ValueError(f"both arms are called {arm_a.name!r}; give them two names")
    ids = [w.id for w in workloads]
    if not ids or len(set(ids)) != len(ids):
        raise ValueError(f"workloads={ids}, allowed: at least one, and each once")
    for name, given, allowed in (("metrics", metrics, TIME_METRICS), ("differ", differ, PARITY_AXES)):
        if unknown := [value for value in given if value not in allowed]:
            raise ValueError(f"{name} holds {unknown[0]!r}, allowed: {', '.join(allowed)}")


def _check_parity(facts: Mapping[str, Mapping[str, Any]], differ: Sequence[str]) -> dict[str, list[Any]]:
    """{axis: [A's, B's]} for every fact that both arms report otherwise; ArmsDiffer where it makes the work unlike."""
    a, b = facts["A"], facts["B"]
    unlike = [axis for axis in PARITY_AXES if a[axis] != b[axis] and axis not in differ]
    if unlike:
        shown = ", ".join(f"{axis} {a[axis]} and {b[axis]}" for axis in unlike)
        raise ArmsDiffer(f"the arms differ in {shown}; make them the same, or name the axis in differ=")
    a, b = ({**arm, **arm.get("setup", {})} for arm in (a, b))
    return {axis: [a[axis], b[axis]] for axis in a if axis in b and a[axis] != b[axis] and axis != "setup"}
