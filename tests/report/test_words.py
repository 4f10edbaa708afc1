"""Verdicts in words: counted, never typed; kernels' results are not called tokens."""

from __future__ import annotations

from qwen3lab.report import words


def verdict(workload: str, word: str, tokens: str, arm_a: str = "torch") -> dict[str, object]:
    return {
        "workload": workload, "metric": "t", "arm_a": arm_a, "arm_b": "qwen3lab", "word": word, "tokens": tokens,
        "ratio": 0.5,
    }  # fmt: skip


def test_workloads_and_their_tokens_are_counted() -> None:
    said = words.headline([verdict("w1", "faster", "identical"), verdict("w2", "slower", "near-tie")])
    assert said == (
        "qwen3lab against torch: faster in 1 of 2 workloads, slower in 1. "
        "Their tokens: identical in 1, near ties in 1."
    )  # fmt: skip


def test_kernels_have_kinds_and_results_and_only_the_first_pair_is_the_headline() -> None:
    rounding = "within-rounding"
    said = words.headline(
        [verdict("decode", "same", rounding), verdict("decode", "slower", rounding, "FlashAttention")]
    )
    assert said == (
        "qwen3lab against torch: same in 1 of 1 kind. Their results: within rounding of fp64 in 1."
    )  # fmt: skip


def test_nothing_compared_says_so() -> None:
    assert words.headline([]) == "Nothing was compared in this round."


def test_a_prediction_held_failed_or_is_open() -> None:
    found = [verdict("a", "faster", "identical"), verdict("b", "same", "identical"), verdict("c", "undecided", "real")]
    rows = words.predictions({"a": "faster", "b": "faster", "c": "faster", "d": "same"}, found)
    assert [row["outcome"] for row in rows] == ["held", "failed", "open", "open"]
