"""Sampling: the right distribution, filters at their edges, seeds that belong to a request and to nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from qwen3lab import LLM, SamplingParams
from qwen3lab.engine.sampler import NOT_FINITE, draw, greedy, logprobs, uniform

LOGITS = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))


def shares(params: SamplingParams, n: int = 4000) -> np.ndarray:
    ids = [draw(LOGITS, params, uniform(seed, 0)) for seed in range(n)]
    return np.bincount(ids, minlength=4)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(temperature=1.0), [0.5, 0.3, 0.15, 0.05]),
        (SamplingParams(temperature=0.5), [0.25, 0.09, 0.0225, 0.0025]),
        (SamplingParams(temperature=1.0, top_k=2), [0.5, 0.3, 0, 0]),
        (SamplingParams(temperature=1.0, top_p=0.6), [0.5, 0.3, 0, 0]),
        (SamplingParams(temperature=1.0, top_k=3, top_p=0.9), [0.5, 0.3, 0.15, 0]),
        (SamplingParams(temperature=1.0, top_p=0.01), [1, 0, 0, 0]),
    ],
    ids=["plain", "cooler", "top-k", "top-p", "both", "tiny top-p"],
)
def test_marginals(params, expected):
    counts, p = shares(params), np.array(expected) / sum(expected)
    assert counts[p == 0].sum() == 0
    kept = p > 0
    if kept.sum() > 1:
        assert stats.chisquare(counts[kept], p[kept] * counts.sum()).pvalue > 1e-4


@pytest.mark.parametrize("top_k", [-1, 0, 4, 5, 10**7, 2**31])
def test_a_top_k_of_the_vocabulary_or_more_filters_nothing(top_k):
    plain = [draw(LOGITS, SamplingParams(temperature=1.0), uniform(s, 0)) for s in range(200)]
    assert [draw(LOGITS, SamplingParams(temperature=1.0, top_k=top_k), uniform(s, 0)) for s in range(200)] == plain


def test_uniform_is_uniform_and_each_place_has_its_own():
    values = [uniform(seed, index) for seed in range(60) for index in range(60)]
    assert stats.kstest(values, "uniform").pvalue > 1e-4
    assert len(set(values)) == len(values)


@given(st.integers(1, 4), st.integers(1, 70), st.integers(0, 2**31))
def test_greedy_takes_the_lowest_of_equals_wherever_they_stand(rows, size, seed):
    logits = torch.randint(-2, 3, (rows, size), generator=torch.Generator().manual_seed(seed)).float()
    expected = [row.index(max(row)) for row in logits.tolist()]
    assert greedy(logits).tolist() == expected
    assert greedy(logits.bfloat16().float()).tolist() == expected


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("at", [0, 3, 4099])
def test_one_value_that_is_not_finite_marks_its_row_and_no_other(value, at):
    logits = torch.zeros(3, 4100)
    logits[:, 5] = 1.0
    logits[1, at] = value
    assert greedy(logits).tolist() == [5, NOT_FINITE, 5]


def test_greedy_takes_the_lowest_of_equals():
    rows = torch.tensor([[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0], [0.0, -1.0, -1.0, 5.0]])
    assert greedy(rows).tolist() == [1, 0, 3]


@pytest.mark.parametrize("temperature", [0, 1e-45, 1e-8, 5e-5])
def test_tiny_temperatures_are_greedy(markov, temperature):
    llm = LLM(markov, num_kv_blocks=16)
    params = [SamplingParams(max_tokens=4, temperature=t) for t in (temperature, 1.0)]
    cold, warm = llm.generate([[5], [5]], params, use_tqdm=False)
    assert cold.token_ids == (6, 7, 8, 9)
    assert len(warm.token_ids) == 4


def test_a_seeded_request_does_not_see_its_batch_mates(chaotic):
    params = SamplingParams(max_tokens=25, temperature=1.0, top_p=0.95, seed=11, ignore_eos=True)
    alone = LLM(chaotic, num_kv_blocks=200).generate([[1, 2, 3]], params, use_tqdm=False)[0].token_ids
    others = SamplingParams(max_tokens=30, temperature=1.3, ignore_eos=True)
    mixed = LLM(chaotic, num_kv_blocks=200, seed=5).generate(
        [[9], [4, 4], [1, 2, 3], [8]], [others, others, params, others], use_tqdm=False
    )
    squeezed_llm = LLM(chaotic, block_size=4, num_kv_blocks=12)
    squeezed = squeezed_llm.generate([[9], [1, 2, 3], [1, 2, 3]], [others, params, params], use_tqdm=False)
    assert squeezed_llm._scheduler.num_preemptions
    assert mixed[2].token_ids == alone
    assert squeezed[1].token_ids == squeezed[2].token_ids == alone


def test_unseeded_requests_differ_from_each_other_and_repeat_with_the_engine(chaotic):
    params = SamplingParams(max_tokens=20, temperature=1.5, ignore_eos=True)
    first = LLM(chaotic, num_kv_blocks=64, seed=3).generate([[1], [1]], params, use_tqdm=False)
    again = LLM(chaotic, num_kv_blocks=64, seed=3).generate([[1], [1]], params, use_tqdm=False)
    other = LLM(chaotic, num_kv_blocks=64, seed=4).generate([[1], [1]], params, use_tqdm=False)
    assert first[0].token_ids != first[1].token_ids
    assert [c.token_ids for c in first] == [c.token_ids for c in again]
    assert first[0].token_ids != other[0].token_ids


def test_logprobs_are_those_of_the_distribution():
    result = logprobs(LOGITS, 2, 2)
    assert result.chosen == pytest.approx(np.log(0.15), rel=1e-6)
    assert [i for i, _ in result.top] == [0, 1]
    assert result.top[0][1] == pytest.approx(np.log(0.5), rel=1e-6)
    assert logprobs(LOGITS, 2, 0).top == ()
    assert len(logprobs(LOGITS, 2, 99).top) == 4


def test_completions_carry_one_logprob_per_token(markov):
    params = [SamplingParams(max_tokens=3, logprobs=2), SamplingParams(max_tokens=3)]
    asked, silent = LLM(markov, num_kv_blocks=16).generate([[1], [1]], params, use_tqdm=False)
    assert silent.logprobs is None
    assert len(asked.logprobs) == 3
    assert [lp.top[0][0] for lp in asked.logprobs] == list(asked.token_ids)
    assert all(lp.chosen == lp.top[0][1] <= 0 for lp in asked.logprobs)


def test_top_k_one_is_greedy(markov):
    params = SamplingParams(max_tokens=5, temperature=2.0, top_k=1)
    (completion,) = LLM(markov, num_kv_blocks=16).generate([[40]], params, use_tqdm=False)
    assert completion.token_ids == tuple(41 + i for i in range(5))
