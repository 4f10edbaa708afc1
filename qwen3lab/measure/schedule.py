"""The order of a comparison: blocks A B B A or B A A B by a seeded coin, as many of the one as of the other.

Every pair of blocks of a workload holds one of each kind, and the coin says which comes first; so what a slot does to a
time cancels in the mean, and nobody can know the next arm. Blocks of different workloads take turns, so that a
workload's blocks lie far apart in time and their spread shows the machine's slow moods.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qwen3lab.measure.stats import ORDERS


@dataclass(frozen=True)
class Planned:
    """One block to run: `order` gives the arm of each of its four slots."""

    workload: str
    block_id: int
    order: str


def orders(blocks: int, seed: int, workload: str) -> list[str]:
    """The orders of one workload's blocks. More blocks under the same seed begin with the same orders."""
    coin = random.Random(f"{seed}/{workload}")  # a string seeds through SHA-512, the same everywhere
    result: list[str] = []
    while len(result) < blocks:
        first = coin.choice(ORDERS)
        result += [first, *(order for order in ORDERS if order != first)]
    return result[:blocks]


def plan(workloads: Sequence[str], blocks: int, seed: int) -> Iterator[list[Planned]]:
    """Rounds of blocks: in each, every workload once, in an order drawn anew."""
    if blocks < 1:
        raise ValueError(f"blocks={blocks}, allowed: at least 1 (an interval needs 2, and means something from 3)")
    drawn = {workload: orders(blocks, seed, workload) for workload in workloads}
    coin = random.Random(f"{seed}/round")
    for k in range(blocks):
        turn = list(workloads)
        coin.shuffle(turn)
        yield [Planned(workload, k, drawn[workload][k]) for workload in turn]
