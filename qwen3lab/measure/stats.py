"""From blocks to a verdict. The unit is the block, not the iteration.

A block is A B B A or B A A B; its log ratio  r = ½(ln B₁ + ln B₂) − ½(ln A₁ + ln A₂)  is free of any drift that is
linear over the block. The ratio reported is exp(mean r), B's time over A's, with a Student t interval over blocks; a
bootstrap interval and a Wilcoxon signed-rank test stand beside it as second and third opinions and decide nothing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats as scipy_stats

Word = Literal["faster", "slower", "same", "undecided"]
Floats = NDArray[np.float64]

CONFIDENCE = 0.95
BOOTSTRAP_RESAMPLES = 5_000
ORDERS = ("ABBA", "BAAB")


@dataclass(frozen=True)
class Block:
    """Four times of one metric in the order they were run, in seconds."""

    order: str
    times_s: tuple[float, float, float, float]

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"order={self.order!r}, allowed: {', '.join(ORDERS)}")
        if not all(math.isfinite(t) and t > 0 for t in self.times_s):
            raise ValueError(f"times_s={self.times_s}: a time must be finite and over 0 to have a logarithm")

    @property
    def outer_minus_inner(self) -> float:
        """½(ln t₀ + ln t₃) − ½(ln t₁ + ln t₂)."""
        first, second, third, fourth = map(math.log, self.times_s)
        return (first + fourth) / 2 - (second + third) / 2

    @property
    def log_ratio(self) -> float:
        """ln(time of B / time of A)."""
        return -self.outer_minus_inner if self.order == "ABBA" else self.outer_minus_inner


@dataclass(frozen=True)
class Estimate:
    """Ratio time_B / time_A over n blocks. Intervals are None below two blocks: nothing then says how sure it is.

    slot_effect  exp of what standing outside in a block does to a time, arms apart; None until both orders were run
    """

    ratio: float
    ci_low: float | None
    ci_high: float | None
    confidence: float
    n_blocks: int
    sd_log: float | None
    bootstrap_low: float | None
    bootstrap_high: float | None
    bootstrap_method: str | None
    wilcoxon_p: float | None
    slot_effect: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def estimate(blocks: Sequence[Block], confidence: float = CONFIDENCE, seed: int = 0) -> Estimate:
    """The ratio over `blocks` (at least one) with its intervals; `seed` is the bootstrap's."""
    if not blocks:
        raise ValueError("no blocks to estimate from; run at least one")
    r = np.array([block.log_ratio for block in blocks])
    n = len(r)
    low = high = sd = p = None
    bootstrap: tuple[float | None, float | None, str | None] = (None, None, None)
    if n >= 2:
        sd = float(r.std(ddof=1))
        low, high = (math.exp(bound) for bound in t_interval(r, confidence))
        bootstrap = _bootstrap(r, confidence, seed)
        p = float(scipy_stats.wilcoxon(r).pvalue) if np.any(r != 0) else 1.0
    return Estimate(math.exp(r.mean()), low, high, confidence, n, sd, *bootstrap, p, _slot_effect(blocks))


def confidence_of(looks: Sequence[int], confidence: float = CONFIDENCE) -> float:
    """What each interval must hold for when a comparison is looked at after each of `looks` blocks and may then end.

    The error is shared out evenly (Bonferroni): however often one looks, all looks together are wrong no oftener than
    one look at `confidence` would be. It costs width, less than a wrong claim does.
    """
    if list(looks) != sorted(set(looks)) or (looks and looks[0] < 2):
        raise ValueError(f"looks={list(looks)}, allowed: numbers of blocks from 2 on, each larger than the last")
    return 1 - (1 - confidence) / max(len(looks), 1)


def t_interval(r: Floats, confidence: float) -> tuple[float, float]:
    """Student's interval for the mean of r; a single point where all values are equal."""
    n, sd = len(r), float(r.std(ddof=1))
    half = _t_quantile(confidence, n - 1) * sd / math.sqrt(n)
    mean = float(r.mean())
    return mean - half, mean + half


@cache
def _t_quantile(confidence: float, df: int) -> float:
    """Two-sided: a share `confidence` of Student's t lies within ± this."""
    return float(scipy_stats.t.ppf((1 + confidence) / 2, df))


def word(ci_low: float | None, ci_high: float | None, margin: float) -> Word:
    """The verdict on B against A. `margin` is the difference nobody minds, 0.02 for 2 %.

    same       the whole interval lies within 1/(1 + margin) to 1 + margin, wherever 1 is in it
    faster     the whole interval is below 1 (B took less time), and not all of it within the margin
    slower     likewise above 1
    undecided  the data do not say
    """
    if margin < 0:
        raise ValueError(f"margin={margin}, allowed: 0 and up, for example 0.02 for 2 %")
    if ci_low is None or ci_high is None:
        return "undecided"
    if 1 / (1 + margin) <= ci_low and ci_high <= 1 + margin:
        return "same"
    if ci_high < 1:
        return "faster"
    if ci_low > 1:
        return "slower"
    return "undecided"


def say(blocks: Sequence[Block], margin: float, confidence: float = CONFIDENCE) -> Word:
    """The word of at least two blocks by their t interval alone, which is what decides."""
    low, high = t_interval(np.array([block.log_ratio for block in blocks]), confidence)
    return word(math.exp(low), math.exp(high), margin)


def _bootstrap(r: Floats, confidence: float, seed: int) -> tuple[float | None, float | None, str | None]:
    """BCa interval of the mean; percentile where BCa is not defined (few or equal blocks), and that is said."""
    for method in ("BCa", "percentile"):
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that BCa is not defined is found below, and recorded
            result = scipy_stats.bootstrap(
                (r,),
                np.mean,
                confidence_level=confidence,
                n_resamples=BOOTSTRAP_RESAMPLES,
                method=method,
                rng=np.random.default_rng(seed),
            )
        low, high = result.confidence_interval
        if math.isfinite(low) and math.isfinite(high):
            return math.exp(low), math.exp(high), method
    return None, None, None


def _slot_effect(blocks: Sequence[Block]) -> float | None:
    """ABBA puts A outside, BAAB puts B: the mean of both kinds' outer − inner is the slots' and not the arms'."""
    kinds = [[b.outer_minus_inner for b in blocks if b.order == order] for order in ORDERS]
    if not all(kinds):
        return None
    return math.exp(sum(sum(kind) / len(kind) for kind in kinds) / 2)
