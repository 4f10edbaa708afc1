"""The metrics: one definition each, with its formula, its unit, and what other tools call the same number.

The same word means different numbers elsewhere (GuideLLM's TPOT includes the first token, vLLM's does not), so a report
prints the formula beside the number. All times of a run are seconds since its start, on one monotonic clock. What does
not exist (the TPOT of one token) is None, never zero. Token counts come from the ids that were returned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median


@dataclass(frozen=True)
class Metric:
    """A number that can be reported. `of` is what it belongs to: "request", "gap" (pooled over requests) or "trial"."""

    name: str
    unit: str
    formula: str
    of: str
    aliases: dict[str, str]

    def to_dict(self) -> dict[str, object]:
        return {"formula": self.formula, "unit": self.unit, "of": self.of, "aliases": dict(self.aliases)}


@dataclass(frozen=True)
class RequestTimes:
    """One request as it was seen from outside: counts, and host times in seconds since the run's start."""

    prompt_tokens: int
    arrival_s: float
    token_times_s: tuple[float, ...]

    @property
    def output_tokens(self) -> int:
        return len(self.token_times_s)


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "wall_s", "s", "last token of the run on the host − start of the run", "trial",
            {"vllm": "duration", "aiperf": "benchmark_duration"},
        ),
        Metric(
            "output_tok_per_s", "tokens/s", "Σ output tokens / wall_s", "trial",
            {"vllm": "output_throughput", "guidellm": "output_tokens_per_second", "aiperf": "output_token_throughput"},
        ),
        Metric(
            "total_tok_per_s", "tokens/s", "Σ (prompt tokens + output tokens) / wall_s", "trial",
            {"vllm": "total_token_throughput", "guidellm": "tokens_per_second", "aiperf": "total_token_throughput"},
        ),
        Metric(
            "ttft_s", "s", "first token on the host − arrival (queueing included)", "request",
            {"vllm": "ttft", "guidellm": "time_to_first_token_ms", "aiperf": "time_to_first_token"},
        ),
        Metric(
            "tpot_s", "s", "(last token − first token) / (output tokens − 1)", "request",
            {"vllm": "tpot", "guidellm": "inter_token_latency_ms", "aiperf": "inter_token_latency"},
        ),
        Metric(
            "tpot_with_ttft_s", "s", "(last token − arrival) / output tokens", "request",
            {"guidellm": "time_per_output_token_ms"},
        ),
        Metric(
            "e2e_s", "s", "last token on the host − arrival", "request",
            {"vllm": "e2el", "guidellm": "request_latency", "aiperf": "request_latency"},
        ),
        Metric(
            "itl_s", "s", "every gap between one token and the next of its request; tokens of one step have gaps of 0",
            "gap", {"vllm": "itl", "aiperf": "inter_chunk_latency"},
        ),
        Metric("worst_stall_s", "s", "max of itl_s over the run", "trial", {}),
    )
}  # fmt: skip

TIME_METRICS = ("wall_s", "ttft_s", "tpot_s", "e2e_s", "worst_stall_s")
"""What two arms can be compared by: one positive time a trial, smaller is better (see `trial_value`)."""


def ttft_s(request: RequestTimes) -> float | None:
    return request.token_times_s[0] - request.arrival_s if request.token_times_s else None


def e2e_s(request: RequestTimes) -> float | None:
    return request.token_times_s[-1] - request.arrival_s if request.token_times_s else None


def tpot_s(request: RequestTimes) -> float | None:
    times = request.token_times_s
    return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None


def tpot_with_ttft_s(request: RequestTimes) -> float | None:
    last = e2e_s(request)
    return last / request.output_tokens if last is not None else None


def itl_s(request: RequestTimes) -> tuple[float, ...]:
    return tuple(after - before for before, after in pairwise(request.token_times_s))


def wall_s(requests: Sequence[RequestTimes]) -> float | None:
    return max((r.token_times_s[-1] for r in requests if r.token_times_s), default=None)


def output_tok_per_s(requests: Sequence[RequestTimes]) -> float | None:
    return _rate(sum(r.output_tokens for r in requests), wall_s(requests))


def total_tok_per_s(requests: Sequence[RequestTimes]) -> float | None:
    return _rate(sum(r.prompt_tokens + r.output_tokens for r in requests), wall_s(requests))


def worst_stall_s(requests: Sequence[RequestTimes]) -> float | None:
    return max((gap for r in requests for gap in itl_s(r)), default=None)


def trial_value(name: str, requests: Sequence[RequestTimes]) -> float | None:
    """A trial's one number for a comparison: its own metric, or the median over its requests of theirs.

    `name` is one of TIME_METRICS; None where no request has the metric.
    """
    if name not in TIME_METRICS:
        raise ValueError(f"metric {name!r} cannot be compared, allowed: {', '.join(TIME_METRICS)}")
    if name == "wall_s":
        return wall_s(requests)
    if name == "worst_stall_s":
        return worst_stall_s(requests)
    each = {"ttft_s": ttft_s, "tpot_s": tpot_s, "e2e_s": e2e_s}[name]
    values = [value for r in requests if (value := each(r)) is not None]
    return median(values) if values else None


@dataclass(frozen=True)
class Percentile:
    """Quantile `q` of `n` values; `value` is None where n values cannot say it."""

    q: float
    n: int
    value: float | None


def percentile(values: Sequence[float], q: float) -> Percentile:
    """Quantile q in (0, 1), linear between order statistics; the median from one value on.

    Refused (value None) unless at least one observation is expected beyond it, n · min(q, 1 − q) ≥ 1: a "p99" of 20
    values is their maximum under another name.
    """
    if not 0.0 < q < 1.0:
        raise ValueError(f"q={q}, allowed: between 0 and 1, for example 0.99")
    n = len(values)
    supported = n >= 1 if q == 0.5 else n * min(q, 1 - q) >= 1 - 1e-9
    if not supported:
        return Percentile(q, n, None)
    ordered = sorted(values)
    position = q * (n - 1)
    low = math.floor(position)
    high = min(low + 1, n - 1)
    return Percentile(q, n, ordered[low] + (position - low) * (ordered[high] - ordered[low]))


def _rate(count: int, seconds: float | None) -> float | None:
    return count / seconds if seconds else None
