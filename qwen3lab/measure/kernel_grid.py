"""Operations at several sizes, each done by several arms: checked against fp64 first, then timed by turns.

`attention_cases` and `projection_cases` build the cases. A row says what ran, how long a call took, what rate that is
of the least work an implementation can do, and what share of what this machine reaches; an arm that could not run, or
whose time would mean nothing, has its reason instead. A block times every arm forwards and then backwards, so that for
each two it is ABBA or BAAB, and gives one ratio.
"""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any, Literal

import pandas as pd
import torch

from qwen3lab.measure import machine
from qwen3lab.measure.kernel_timing import Call, Ceilings, Clock
from qwen3lab.measure.metrics import Metric
from qwen3lab.measure.stats import Block, estimate, word
from qwen3lab.measure.verdict import Verdict
from qwen3lab_kernels.cost import Cost
from qwen3lab_kernels.dependent import dependent_launch

OURS = "qwen3lab"
TORCH = "torch"
Options = Mapping[str, Mapping[str, Any]]
PLAIN: Options = {OURS: {}}

Bound = Literal["read", "copy", "product"]
ERROR_ALLOWED = {torch.bfloat16: 0.03, torch.float16: 0.004, torch.float32: 1e-5}  # four roundings of the largest value
INTERPRETED = "computed by Triton's interpreter, which tells right from wrong, and not fast from slow"
TIME = Metric(
    "time_us", "µs", "median of a timing's replays, each of many calls in one CUDA graph; per call", "call", {}
)
MEAN = Metric("mean_time_us", "µs", "geometric mean of time_us over all sizes of a kind", "kind", {})


class WrongResult(AssertionError):
    """An arm's result is further from fp64 than roundings explain; its speed would count for nothing."""


@dataclass(frozen=True)
class Case:
    """One size of one operation.

    kind     what several sizes are summed up under: decode, prefill, …
    size     what the row is about, by column: batch, context, …
    bound    which of the machine's ceilings the operation could reach: reading, copying, or products
    arms     name → its calls, one a set of buffers; each returns its result. Ours are those that begin with OURS
    error    the largest distance of a result of the first set from fp64, over the largest value there
    missing  name → why that arm cannot run here
    """

    kind: str
    op: str
    size: Mapping[str, int | str]
    cost: Cost
    bound: Bound
    dtype: torch.dtype
    device: torch.device
    arms: Mapping[str, Sequence[Call]]
    error: Callable[[Any], float]
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.op} " + ", ".join(f"{key}={value}" for key, value in self.size.items())


def relative_error(*pairs: tuple[torch.Tensor, torch.Tensor]) -> float:
    """The largest max |result − exact| / max |exact| of the (result, exact) pairs; NaN where any result has one."""
    each = [(result.double() - exact).abs().max() / exact.abs().max() for result, exact in pairs]
    return float(torch.stack(each).max())  # torch's maximum, unlike Python's, is NaN if one is


def dependent_too(device: torch.device) -> Options:
    """Our kernel's arms: launched after its predecessor has ended and, where the device can, before (dependent.py)."""
    both = {f"{OURS} dependent": {"dependent": True}} if dependent_launch(device) else {}
    return {OURS: {}, **both}


@dataclass(frozen=True)
class Grid:
    """What was measured.

    rows      one a case and arm: kind, op, the size's columns, arm, time_us (the median of its timings), low_us and
              high_us (their extremes), gbps, tflops, share of the ceiling, bound, floor_us, error, how, reason
    times     one a timing: case, kind, arm, block, slot, order, time_us
    verdicts  ours against each other arm: of every kind over its sizes (the geometric mean), then of every case
    settings  blocks, seed, margin, budget_ms, ceilings
    """

    rows: pd.DataFrame
    times: pd.DataFrame
    verdicts: list[Verdict]
    settings: dict[str, Any]

    def describe(self) -> dict[str, Any]:
        """What a round records beside the frames: plain JSON values."""
        arms = self.rows.groupby("arm", sort=False)["how"].first()
        return {
            "machine": machine.facts(),
            "libraries": machine.libraries(),
            "metrics": {metric.name: metric.to_dict() for metric in (MEAN, TIME)},
            "arms": [{"label": arm, "name": arm, "timed": str(how)} for arm, how in arms.items()],
            "comparison": self.settings,
        }


def check(case: Case) -> dict[str, float]:
    """Each arm's distance from fp64; WrongResult if one is further than ERROR_ALLOWED."""
    allowed = ERROR_ALLOWED[case.dtype]
    errors = {arm: case.error(calls[0]()) for arm, calls in case.arms.items()}
    for arm, error in errors.items():
        if not error <= allowed:
            raise WrongResult(f"{case.name}, {arm}: {error:.3g} from fp64, allowed {allowed}")
    return errors


def measure(
    cases: Iterable[Case],
    ceilings: Ceilings,
    *,
    blocks: int = 4,
    seed: int = 0,
    margin: float = 0.05,
    budget_ms: float = 20.0,
) -> Grid:
    """All cases, one after the other. `cases` may be a generator: a case's buffers are dropped before the next's.

    budget_ms  of one timing; an arm has two a block. Raises WrongResult (see `check`).
    """
    coin = random.Random(seed)
    rows: list[dict[str, Any]] = []
    times: list[dict[str, Any]] = []
    for case in cases:
        errors = check(case)
        clocks = {arm: Clock(calls, case.device) for arm, calls in case.arms.items() if _can_be_timed(case, arm)}
        mine = _timed(case, clocks, blocks, coin, budget_ms)
        rows += _rows(case, errors, clocks, mine, ceilings)
        times += mine
        on_card = case.device.type == "cuda"
        del case, clocks
        gc.collect()
        if on_card:
            torch.cuda.empty_cache()
    settings = {"blocks": blocks, "seed": seed, "margin": margin, "budget_ms": budget_ms, "ceilings": asdict(ceilings)}
    columns = ["case", "kind", "arm", "block", "slot", "order", "time_us"]
    return Grid(
        pd.DataFrame(rows), pd.DataFrame(times, columns=columns), _verdicts(rows, times, margin, seed), settings
    )


def _can_be_timed(case: Case, arm: str) -> bool:
    """Whether an arm's time is that of what it is named after: on a CPU, our kernels are interpreted."""
    return case.device.type == "cuda" or not _ours(arm)


def _ours(arm: str) -> bool:
    return arm.split(" ")[0] == OURS


def _timed(
    case: Case, clocks: Mapping[str, Clock], blocks: int, coin: random.Random, budget_ms: float
) -> list[dict[str, Any]]:
    rows = []
    for block in range(blocks):
        turn = list(clocks) if coin.random() < 0.5 else list(clocks)[::-1]
        for slot, arm in enumerate(turn + turn[::-1]):
            row = {"case": case.name, "kind": case.kind, "arm": arm, "block": block, "slot": slot}
            rows.append(row | {"order": turn.index(arm), "time_us": clocks[arm].time_us(budget_ms)})
    return rows


def _rows(
    case: Case,
    errors: Mapping[str, float],
    clocks: Mapping[str, Clock],
    times: Sequence[Mapping[str, Any]],
    ceilings: Ceilings,
) -> list[dict[str, Any]]:
    by_bytes = case.bound != "product"
    reached = {"read": ceilings.read_gbps, "copy": ceilings.copy_gbps, "product": ceilings.product_tflops}[case.bound]
    floor_us = case.cost.bytes_moved / reached / 1e3 if by_bytes else case.cost.flops / reached / 1e6
    begin = {"case": case.name, "kind": case.kind, "op": case.op, **case.size}
    rows = []
    for arm, error in errors.items():
        row = begin | {"arm": arm, "error": error, "bound": case.bound, "floor_us": floor_us}
        if arm not in clocks:
            rows.append(row | {"reason": INTERPRETED})
            continue
        mine = pd.Series([t["time_us"] for t in times if t["arm"] == arm])
        took_us = float(mine.median())
        rows.append(
            row
            | {"time_us": took_us, "low_us": float(mine.min()), "high_us": float(mine.max())}
            | {"gbps": case.cost.bytes_moved / took_us / 1e3, "tflops": case.cost.flops / took_us / 1e6}
            | {"share": floor_us / took_us, "how": clocks[arm].how, "reason": None}
        )
    return rows + [begin | {"arm": arm, "reason": reason} for arm, reason in case.missing.items()]


def _verdicts(
    rows: Sequence[Mapping[str, Any]], times: Sequence[Mapping[str, Any]], margin: float, seed: int
) -> list[Verdict]:
    """Of every kind, then of every case, for each of our arms that ran against each other one that ran beside it."""
    logs: dict[tuple[str, str], dict[int, tuple[int, list[float]]]] = {}
    for row in times:
        _, slots = logs.setdefault((row["case"], row["arm"]), {}).setdefault(row["block"], (row["order"], []))
        slots.append(math.log(row["time_us"]))

    def verdict(about: str, metric: Metric, cases: Sequence[str], rival: str, ours: str) -> Verdict:
        def claim(found: Any, note: str) -> Verdict:
            ratio, low, high = (found.ratio, found.ci_low, found.ci_high) if found else (None, None, None)
            said = word(low, high, margin) if found else "undecided"
            return Verdict(
                about, metric.name, rival, ours, ratio, low, high, found.n_blocks if found else 0, margin, said,
                "within-rounding", note, found,
            )  # fmt: skip

        if any((case, arm) not in logs for case in cases for arm in (rival, ours)):
            return claim(None, f"{ours} was {INTERPRETED}")
        return claim(estimate(_blocks(logs, cases, rival, ours), seed=seed), "")

    ran: dict[str, dict[str, list[str]]] = {}  # kind → case → arms
    for row in rows:
        if "error" in row:
            ran.setdefault(row["kind"], {}).setdefault(row["case"], []).append(row["arm"])
    of_kinds: list[Verdict] = []
    of_cases: list[Verdict] = []
    for kind, arms_of in ran.items():
        pairs: dict[tuple[str, str], list[str]] = {}
        for case, arms in arms_of.items():
            for rival, ours in product(arms, arms):
                if _ours(ours) and not _ours(rival):
                    pairs.setdefault((rival, ours), []).append(case)
        for (rival, ours), cases in pairs.items():
            of_kinds.append(verdict(kind, MEAN, cases, rival, ours))
            of_cases += [verdict(case, TIME, [case], rival, ours) for case in cases]
    return of_kinds + of_cases


def _blocks(
    logs: Mapping[tuple[str, str], Mapping[int, tuple[int, list[float]]]], cases: Sequence[str], a: str, b: str
) -> list[Block]:
    """Blocks of two arms over `cases`: a slot's time is the geometric mean, in seconds, of that slot of each case.

    Each case tossed its own coin, so a block's order here is that of the first; a ratio does not depend on it.
    """
    blocks = []
    for block in logs[cases[0], a]:
        slots = [[logs[case, arm][block][1] for case in cases] for arm in (a, b)]
        (a_first, a_last), (b_first, b_last) = ([_mean_s(slot) for slot in zip(*arm, strict=True)] for arm in slots)
        if logs[cases[0], a][block][0] < logs[cases[0], b][block][0]:
            blocks.append(Block("ABBA", (a_first, b_first, b_last, a_last)))
        else:
            blocks.append(Block("BAAB", (b_first, a_first, a_last, b_last)))
    return blocks


def _mean_s(logs_us: Sequence[float]) -> float:
    """The geometric mean, in seconds, of times whose logarithms in µs these are."""
    return math.exp(sum(logs_us) / len(logs_us)) * 1e-6
