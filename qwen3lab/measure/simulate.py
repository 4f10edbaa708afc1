"""Arms whose truth is known: what the estimator says of them is the estimator's own error.

A trial's time is  base · exp(effect of its arm + drift + slot penalty + noise).  Used by the tests, and by the notebook
that shows how often a verdict is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qwen3lab.measure.schedule import orders
from qwen3lab.measure.stats import Block, Word, confidence_of, say


@dataclass(frozen=True)
class World:
    """What happens to the times, in natural-log units (0.01 is 1 %).

    effect        of arm B over arm A
    noise         standard deviation of a trial
    tail_df       degrees of freedom of the noise's Student t, scaled to `noise` (inf: Gaussian; 3: heavy tails)
    drift         linear, per trial (a machine that warms up)
    wander        standard deviation of a random walk's step, per trial (a machine that does as it likes)
    slot_penalty  added to the first slot of every block (a cache gone cold between blocks)
    """

    effect: float = 0.0
    noise: float = 0.02
    tail_df: float = math.inf
    drift: float = 0.0
    wander: float = 0.0
    slot_penalty: float = 0.0


def blocks(world: World, n_blocks: int, seed: int) -> list[Block]:
    """A comparison of `n_blocks` blocks as it would have been measured in `world`, in the real schedule's order."""
    rng = np.random.default_rng(seed)
    n = 4 * n_blocks
    if math.isinf(world.tail_df):
        noise = rng.normal(0.0, world.noise, n)
    else:
        noise = rng.standard_t(world.tail_df, n) * world.noise / math.sqrt(world.tail_df / (world.tail_df - 2))
    common = world.drift * np.arange(n) + np.cumsum(rng.normal(0.0, world.wander, n))
    common[::4] += world.slot_penalty
    result = []
    for k, order in enumerate(orders(n_blocks, seed, "simulated")):
        arms = np.array([world.effect if arm == "B" else 0.0 for arm in order])
        first, second, third, fourth = np.exp(arms + common[4 * k : 4 * k + 4] + noise[4 * k : 4 * k + 4]).tolist()
        result.append(Block(order, (first, second, third, fourth)))
    return result


def looked_at(world: World, looks: Sequence[int], margin: float, seed: int) -> tuple[Word, int]:
    """What a comparison that may end at each of `looks` says of `world`, and after how many blocks."""
    found, confidence = blocks(world, looks[-1], seed), confidence_of(looks)
    for n in looks[:-1]:
        if (word := say(found[:n], margin, confidence)) != "undecided":
            return word, n
    return say(found, margin, confidence), looks[-1]
