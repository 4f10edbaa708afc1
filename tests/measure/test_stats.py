"""The estimator on arms whose truth is known: what it must cancel, how often it is wrong, and what it still finds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen3lab.measure import simulate, stats
from qwen3lab.measure.simulate import World
from qwen3lab.measure.stats import Block, estimate, word

ROUNDS = 2_000  # simulated comparisons behind each rate
times = st.floats(1e-3, 1e3)


def words(world: World, n_blocks: int, margin: float, rounds: int = ROUNDS) -> list[str]:
    """The verdict of `rounds` simulated comparisons."""
    return [stats.say(simulate.blocks(world, n_blocks, seed), margin) for seed in range(rounds)]


@given(st.sampled_from(stats.ORDERS), st.tuples(times, times, times, times))
def test_log_ratio_is_the_formula(order, t):
    a = [math.log(x) for x, arm in zip(t, order, strict=True) if arm == "A"]
    b = [math.log(x) for x, arm in zip(t, order, strict=True) if arm == "B"]
    assert Block(order, t).log_ratio == pytest.approx(sum(b) / 2 - sum(a) / 2, abs=1e-12)


@given(st.sampled_from(stats.ORDERS), st.floats(0.5, 2.0), st.floats(-0.3, 0.3), st.floats(0.01, 10.0))
def test_linear_drift_within_a_block_cancels(order, ratio, drift, base):
    t = tuple(base * (ratio if arm == "B" else 1.0) * math.exp(drift * slot) for slot, arm in enumerate(order))
    assert math.exp(Block(order, t).log_ratio) == pytest.approx(ratio, rel=1e-9)


@settings(deadline=None, max_examples=15)  # each draws two bootstraps
@given(st.lists(st.tuples(times, times, times, times), min_size=2, max_size=8))
def test_swapping_the_arms_inverts_the_ratio(all_times):
    one = estimate([Block("ABBA", t) for t in all_times])
    other = estimate([Block("BAAB", t) for t in all_times])
    assert one.ratio == pytest.approx(1 / other.ratio, rel=1e-9)
    assert one.ci_low == pytest.approx(1 / other.ci_high, rel=1e-6)


def test_a_slot_penalty_is_seen_and_does_not_bias():
    world = World(effect=math.log(1.1), noise=0.0, slot_penalty=0.2)
    found = estimate(simulate.blocks(world, 6, seed=3))
    assert found.ratio == pytest.approx(1.1, rel=1e-9)
    assert found.slot_effect == pytest.approx(math.exp(0.1), rel=1e-9)  # half of it: one of two outer slots


@pytest.mark.parametrize(
    "world",
    [
        World(),
        World(drift=0.01),
        World(wander=0.01),
        World(slot_penalty=0.05),
        World(tail_df=3.0),
        World(tail_df=3.0, drift=0.005, wander=0.01, slot_penalty=0.03),
    ],
    ids=["noise", "drift", "wander", "slot", "tails", "all"],
)
def test_equal_arms_are_called_different_no_oftener_than_stated(world):
    for n_blocks in (3, 6):
        wrong = sum(w in ("faster", "slower") for w in words(world, n_blocks, margin=0.0))
        nominal = 1 - stats.CONFIDENCE
        # Three standard errors of the simulation itself above the nominal rate.
        assert wrong / ROUNDS <= nominal + 3 * math.sqrt(nominal * (1 - nominal) / ROUNDS)


@pytest.mark.parametrize("world", [World(), World(tail_df=3.0, drift=0.005, wander=0.01, slot_penalty=0.03)])
def test_however_often_one_looks_the_error_is_the_stated_one(world):
    said = [simulate.looked_at(world, (3, 5, 8, 12), margin=0.0, seed=seed) for seed in range(ROUNDS)]
    wrong = sum(w in ("faster", "slower") for w, _ in said)
    nominal = 1 - stats.CONFIDENCE
    assert wrong / ROUNDS <= nominal + 3 * math.sqrt(nominal * (1 - nominal) / ROUNDS)


def test_looking_without_sharing_the_error_is_wrong_oftener_than_stated():
    """What the sharing is for."""
    wrong = 0
    for seed in range(500):
        found = simulate.blocks(World(), 12, seed)
        wrong += any(stats.say(found[:n], 0.0) != "undecided" for n in (3, 5, 8, 12))
    assert wrong / 500 > 1 - stats.CONFIDENCE + 0.03


def test_a_large_effect_ends_a_comparison_early_and_a_small_one_does_not():
    large = [simulate.looked_at(World(effect=math.log(0.7)), (3, 6, 12), 0.02, seed) for seed in range(300)]
    assert all(word == "faster" for word, _ in large)
    assert sum(n for _, n in large) / 300 < 5
    none = [simulate.looked_at(World(noise=0.05), (3, 6, 12), 0.01, seed)[1] for seed in range(300)]
    assert sum(none) / 300 > 11


@pytest.mark.parametrize("looks", [(1, 4), (4, 4), (6, 3)])
def test_looks_that_make_no_sense_are_refused(looks):
    with pytest.raises(ValueError, match="allowed: numbers of blocks from 2 on, each larger than the last"):
        stats.confidence_of(looks)


def test_arms_that_differ_beyond_the_margin_are_called_the_same_no_oftener_than_stated():
    same = sum(w == "same" for w in words(World(effect=math.log(1.0201)), 6, margin=0.02))
    assert same / ROUNDS <= (1 - stats.CONFIDENCE) / 2 + 0.01


def test_a_true_two_percent_is_found():
    """Noise of 1 % a trial, eight blocks: the block's standard error is 0.35 %, so the power is near 1."""
    found = words(World(effect=math.log(0.98), noise=0.01), 8, margin=0.005, rounds=500)
    assert found.count("faster") / len(found) >= 0.95
    assert "slower" not in found


def test_equal_arms_on_a_quiet_machine_are_called_the_same():
    found = words(World(noise=0.005), 8, margin=0.02, rounds=500)
    assert found.count("same") / len(found) >= 0.99


def test_the_interval_is_the_one_scipy_gives_and_the_others_stand_beside_it():
    from scipy.stats import ttest_1samp, wilcoxon

    blocks = simulate.blocks(World(effect=0.1, noise=0.05), 9, seed=1)
    r = np.array([b.log_ratio for b in blocks])
    found = estimate(blocks)
    expected = ttest_1samp(r, 0.0).confidence_interval(0.95)
    assert math.log(found.ci_low) == pytest.approx(expected.low)
    assert math.log(found.ci_high) == pytest.approx(expected.high)
    assert found.wilcoxon_p == pytest.approx(wilcoxon(r).pvalue)
    assert found.bootstrap_method == "BCa"
    assert found.ci_low < found.bootstrap_low < found.ratio < found.bootstrap_high < found.ci_high


def test_one_block_has_a_ratio_and_no_interval():
    found = estimate([Block("ABBA", (2.0, 1.0, 1.0, 2.0))])
    assert found.ratio == pytest.approx(0.5)
    assert (found.ci_low, found.ci_high, found.bootstrap_low, found.wilcoxon_p) == (None, None, None, None)
    assert word(found.ci_low, found.ci_high, 0.02) == "undecided"


def test_equal_blocks_fall_back_to_the_percentile_bootstrap_and_say_so():
    found = estimate([Block("ABBA", (1.0, 2.0, 2.0, 1.0))] * 4)
    assert found.ratio == found.ci_low == found.ci_high == pytest.approx(2.0)
    assert found.bootstrap_method == "percentile"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.90, 0.95, "faster"),
        (1.05, 1.10, "slower"),
        (0.99, 1.01, "same"),
        (0.985, 0.995, "same"),  # not 1, and nobody minds
        (0.97, 0.99, "faster"),
        (0.95, 1.01, "undecided"),
        (0.90, 1.10, "undecided"),
    ],
)
def test_words(low, high, expected):
    assert word(low, high, margin=0.02) == expected


def test_what_cannot_be_estimated_is_refused():
    with pytest.raises(ValueError, match="finite and over 0"):
        Block("ABBA", (1.0, 0.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="ABBA, BAAB"):
        Block("AABB", (1.0, 1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="no blocks"):
        estimate([])
    with pytest.raises(ValueError, match="margin"):
        word(0.9, 1.1, -0.1)
