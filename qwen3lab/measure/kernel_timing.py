"""How long one kernel takes, and the most that the machine can do, so that every rate has its share beside it.

On a card: many calls in one CUDA graph, over sets of buffers that take turns, replayed under `triton.testing.do_bench`.
A launch alone is longer than the kernels asked about, and a buffer that is still in the cache is not being read. On a
CPU: the host's clock. What ran is said in `Clock.how`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from qwen3lab.model import linear

Call = Callable[[], object]
CALLS_IN_GRAPH = 48  # what a replay costs to start, a few µs, is shared by so many
MAX_COPIES = 64


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


class Clock:
    """Calls of the same work, one a set of buffers, ready to be timed, by turns; on a card captured in one graph.

    how   what a timing is, in words
    """

    def __init__(self, calls: Sequence[Call], device: torch.device, *, longest_ms: float = 8.0):
        """`longest_ms`: about how long a replay may take, where more than one call is worth capturing at all."""
        self.calls, self.graph = calls, None
        for call in calls:
            call()
        if device.type != "cuda":
            self.how = "host clock"
            return
        torch.cuda.synchronize(device)
        begin = time.perf_counter()
        calls[0]()
        torch.cuda.synchronize(device)
        once_ms = (time.perf_counter() - begin) * 1e3
        rounds = max(1, min(-(-CALLS_IN_GRAPH // len(calls)), int(longest_ms / max(once_ms * len(calls), 1e-3))))
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for _ in range(rounds):
                for call in calls:
                    call()
        self.count = rounds * len(calls)
        self.how = f"graph of {self.count} calls, {len(calls)} sets of buffers by turns"

    def time_us(self, budget_ms: float) -> float:
        """µs a call: the median over as many replays, on a CPU calls, as the budget holds; at least a few."""
        if self.graph is None:
            return self._by_the_host(budget_ms)
        from triton.testing import do_bench

        median_ms: float = do_bench(self.graph.replay, warmup=budget_ms / 4, rep=budget_ms, return_mode="median")
        return median_ms * 1e3 / self.count

    def _by_the_host(self, budget_ms: float) -> float:
        times: list[float] = []
        end = time.perf_counter() + budget_ms / 1e3
        while time.perf_counter() < end or len(times) < 5:
            for call in self.calls:
                begin = time.perf_counter()
                call()
                times.append((time.perf_counter() - begin) * 1e6)
        return statistics.median(times)


def ceilings(device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Ceilings:
    """Measured now: a sum over, and a copy of, far more than the cache holds; a large square product in `dtype`,
    by the provider that the engine takes."""
    on_card = device.type == "cuda"
    source = torch.randn(2**29 if on_card else 2**25, device=device)
    target = torch.empty_like(source)
    size = 8192 if on_card else 1024
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in "ab")
    product = linear.choose(device, dtype)
    packed = product.pack(b)

    def took_us(call: Call) -> float:
        return Clock([call], device).time_us(60)

    moved = source.numel() * source.element_size()
    return Ceilings(
        read_gbps=moved / took_us(source.sum) / 1e3,
        copy_gbps=2 * moved / took_us(lambda: target.copy_(source)) / 1e3,
        product_tflops=2 * size**3 / took_us(lambda: product(a, packed)) / 1e6,
    )
