"""The order of runs: seeded, balanced, and never known beforehand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen3lab.measure.schedule import orders, plan

seeds = st.integers(0, 2**32)
names = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=6, unique=True)


@given(names, st.integers(1, 12), seeds)
def test_every_workload_has_every_block_once_in_each_round(workloads, blocks, seed):
    rounds = list(plan(workloads, blocks, seed))
    assert len(rounds) == blocks
    for k, turn in enumerate(rounds):
        assert sorted(p.workload for p in turn) == sorted(workloads)
        assert all(p.block_id == k for p in turn)


@given(st.integers(1, 41), seeds)
def test_blocks_are_palindromes_with_two_runs_of_each_arm_and_both_kinds_in_balance(blocks, seed):
    drawn = orders(blocks, seed, "w")
    for order in drawn:
        assert order == order[::-1] and sorted(order) == ["A", "A", "B", "B"]
    assert abs(drawn.count("ABBA") - drawn.count("BAAB")) <= 1
    for pair in zip(drawn[::2], drawn[1::2], strict=False):
        assert pair[0] != pair[1]


@given(names, st.integers(1, 8), seeds)
def test_the_seed_decides_and_more_blocks_begin_alike(workloads, blocks, seed):
    assert list(plan(workloads, blocks, seed)) == list(plan(workloads, blocks, seed))
    for w in workloads:
        assert orders(blocks + 3, seed, w)[:blocks] == orders(blocks, seed, w)


def test_the_coin_falls_on_both_sides():
    first = [orders(1, seed, "w1")[0] for seed in range(400)]
    assert 150 < first.count("ABBA") < 250
    other = [orders(1, seed, "w2")[0] for seed in range(400)]
    assert 150 < sum(a == b for a, b in zip(first, other, strict=True)) < 250  # workloads have coins of their own


def test_no_blocks_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        list(plan(["w"], 0, 0))
