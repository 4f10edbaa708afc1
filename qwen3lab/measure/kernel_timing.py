"""How long one kernel takes, and the most that the machine can do, so that every rate has its share beside it.

On a card: many calls in one CUDA graph, over sets of buffers that take turns, replayed under `triton.testing.do_bench`.
A launch alone is longer than the kernels asked about, and a buffer that is still in the cache is not being read. On a
CPU: the host's clock. What ran is said in `Timing.how`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Call = Callable[[], object]
CALLS_IN_GRAPH = 48  # what a replay costs to start, a few µs, is shared by so many
MAX_COPIES = 64


@dataclass(frozen=True)
class Timing:
    """µs a call: the median of the replays, their 20th and 80th percentiles, and how it was taken."""

    median_us: float
    low_us: float
    high_us: float
    how: str


@dataclass(frozen=True)
class Ceilings:
    """What this machine reaches: bytes read, bytes copied (read and written), GB/s; a large product, TFLOP/s."""

    read_gbps: float
    copy_gbps: float
    product_tflops: float


def copies(set_bytes: int, device: torch.device, most: int = MAX_COPIES) -> int:
    """How many sets of buffers must take turns so that the cache has dropped one before it is used again.

    At most `most`: smaller sets stay in the cache, where in a model, too, a kernel finds what the last one wrote.
    """
    if device.type != "cuda":
        return 1
    cache_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    return min(most, -(-3 * cache_bytes // max(set_bytes, 1)))


def time_us(calls: Sequence[Call], device: torch.device, *, budget_ms: int = 60) -> Timing:
    """µs a call of `calls`, one a set of buffers, each the same work; on a card captured, by turns, in one graph."""
    for call in calls:
        call()
    if device.type != "cuda":
        return _by_the_clock(calls, budget_ms)
    from triton.testing import do_bench

    # Few calls of what is long: one replay must not take the whole budget.
    torch.cuda.synchronize(device)
    begin = time.perf_counter()
    calls[0]()
    torch.cuda.synchronize(device)
    once_ms = (time.perf_counter() - begin) * 1e3
    rounds = max(1, min(-(-CALLS_IN_GRAPH // len(calls)), int(budget_ms / 8 / max(once_ms * len(calls), 1e-3))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    count = rounds * len(calls)
    median, low, high = do_bench(graph.replay, warmup=budget_ms // 3, rep=budget_ms, quantiles=[0.5, 0.2, 0.8])
    per_call = 1e3 / count
    return Timing(median * per_call, low * per_call, high * per_call, f"graph of {count}, {len(calls)} sets by turns")


def _by_the_clock(calls: Sequence[Call], budget_ms: int) -> Timing:
    times: list[float] = []
    end = time.perf_counter() + budget_ms / 1e3
    while time.perf_counter() < end or len(times) < 5:
        for call in calls:
            begin = time.perf_counter()
            call()
            times.append((time.perf_counter() - begin) * 1e6)
    low, *_, high = statistics.quantiles(times, n=5)
    return Timing(statistics.median(times), low, high, f"host clock, {len(times)} calls")


def ceilings(device: torch.device) -> Ceilings:
    """Measured now: a sum over, and a copy of, far more than the cache holds; a large square product in bfloat16."""
    on_card = device.type == "cuda"
    source = torch.randn(2**29 if on_card else 2**25, device=device)
    target = torch.empty_like(source)
    size = 8192 if on_card else 1024
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in "ab")
    read = time_us([lambda: source.sum()], device)
    copy = time_us([lambda: target.copy_(source)], device)
    product = time_us([lambda: a @ b], device)
    moved = source.numel() * source.element_size()
    return Ceilings(
        moved / read.median_us / 1e3, 2 * moved / copy.median_us / 1e3, 2 * size**3 / product.median_us / 1e6
    )
