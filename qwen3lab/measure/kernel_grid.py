"""One operation at one size, done by several arms: checked against fp64 first, then timed, each rate with its share.

`attention_cases` and `projection_cases` build the cases. A row says what ran, how long a call took, what rate that is
of the least work an implementation can do, and what share of what this machine reaches; an arm that could not run has
its reason instead.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd
import torch

from qwen3lab.measure.kernel_timing import Call, Ceilings, time_us
from qwen3lab_kernels.cost import Cost
from qwen3lab_kernels.dependent import dependent_launch

OURS = "qwen3lab"
TORCH = "torch"
Options = Mapping[str, Mapping[str, Any]]
PLAIN: Options = {OURS: {}}

Bound = Literal["read", "copy", "product"]
ERROR_ALLOWED = {torch.bfloat16: 0.03, torch.float16: 0.004, torch.float32: 1e-5}  # four roundings of the largest value


class WrongResult(AssertionError):
    """An arm's result is further from fp64 than roundings explain; its speed would count for nothing."""


@dataclass(frozen=True)
class Case:
    """One size of one operation.

    size     what the row is about, by column: batch, context, …
    bound    which of the machine's ceilings the operation could reach: reading, copying, or products
    arms     name → its calls, one a set of buffers; each returns its result
    error    the largest distance of a result of the first set from fp64, over the largest value there
    missing  name → why that arm cannot run here
    """

    op: str
    size: Mapping[str, int | str]
    cost: Cost
    bound: Bound
    dtype: torch.dtype
    device: torch.device
    arms: Mapping[str, Sequence[Call]]
    error: Callable[[Any], float]
    missing: Mapping[str, str] = field(default_factory=dict)


def relative_error(*pairs: tuple[torch.Tensor, torch.Tensor]) -> float:
    """The largest max |result − exact| / max |exact| of the (result, exact) pairs; NaN where any result has one."""
    each = [(result.double() - exact).abs().max() / exact.abs().max() for result, exact in pairs]
    return float(torch.stack(each).max())  # torch's maximum, unlike Python's, is NaN if one is


def dependent_too(device: torch.device) -> Options:
    """Our kernel's arms: launched after its predecessor has ended and, where the device can, before (dependent.py)."""
    both = {f"{OURS}, dependent": {"dependent": True}} if dependent_launch(device) else {}
    return {OURS: {}, **both}


def measure(case: Case, ceilings: Ceilings, *, budget_ms: int = 60) -> Iterator[dict[str, Any]]:
    """A row an arm. WrongResult if one is further from fp64 than ERROR_ALLOWED."""
    reached = {"read": ceilings.read_gbps, "copy": ceilings.copy_gbps, "product": ceilings.product_tflops}[case.bound]
    begin = {"op": case.op, **case.size}
    for arm, calls in case.arms.items():
        error = case.error(calls[0]())
        if not error <= ERROR_ALLOWED[case.dtype]:
            raise WrongResult(
                f"{case.op} {dict(case.size)}, {arm}: {error:.3g} from fp64, allowed {ERROR_ALLOWED[case.dtype]}"
            )
        timing = time_us(calls, case.device, budget_ms=budget_ms)
        gbps = case.cost.bytes_moved / timing.median_us / 1e3
        tflops = case.cost.flops / timing.median_us / 1e6
        yield begin | {
            "arm": arm,
            "time_us": timing.median_us,
            "low_us": timing.low_us,
            "high_us": timing.high_us,
            "gbps": gbps,
            "tflops": tflops,
            "share": (tflops if case.bound == "product" else gbps) / reached,
            "bound": case.bound,
            "error": error,
            "how": timing.how,
            "reason": None,
        }
    for arm, reason in case.missing.items():
        yield begin | {"arm": arm, "reason": reason}


def table(cases: Iterable[Case], ceilings: Ceilings, *, budget_ms: int = 60) -> pd.DataFrame:
    """Every case's rows. `cases` may be a generator: one case's buffers are dropped before the next are made."""
    rows: list[dict[str, Any]] = []
    for case in cases:
        rows += measure(case, ceilings, budget_ms=budget_ms)
        on_card = case.device.type == "cuda"
        del case
        gc.collect()
        if on_card:
            torch.cuda.empty_cache()
    return pd.DataFrame(rows)
