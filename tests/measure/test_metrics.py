"""Each metric against its formula by hand, and null where it does not exist."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen3lab.measure import metrics
from qwen3lab.measure.metrics import METRICS, TIME_METRICS, RequestTimes, percentile

ONE = RequestTimes(prompt_tokens=10, arrival_s=0.5, token_times_s=(1.0, 1.25, 1.75, 3.0))
LATE = RequestTimes(prompt_tokens=5, arrival_s=2.0, token_times_s=(4.0,))
NOTHING = RequestTimes(prompt_tokens=7, arrival_s=0.0, token_times_s=())


def test_a_request():
    assert metrics.ttft_s(ONE) == 0.5
    assert metrics.e2e_s(ONE) == 2.5
    assert metrics.tpot_s(ONE) == pytest.approx(2.0 / 3)
    assert metrics.tpot_with_ttft_s(ONE) == 2.5 / 4
    assert metrics.itl_s(ONE) == (0.25, 0.5, 1.25)


def test_one_token_has_no_time_per_further_token():
    assert metrics.tpot_s(LATE) is None
    assert metrics.itl_s(LATE) == ()
    assert metrics.ttft_s(LATE) == metrics.e2e_s(LATE) == 2.0


def test_no_token_has_no_times_at_all():
    for metric in (metrics.ttft_s, metrics.tpot_s, metrics.e2e_s, metrics.tpot_with_ttft_s):
        assert metric(NOTHING) is None
    assert metrics.wall_s([NOTHING]) is None
    assert metrics.output_tok_per_s([NOTHING]) is None
    assert metrics.worst_stall_s([NOTHING, LATE]) is None


def test_a_trial():
    both = [ONE, LATE]
    assert metrics.wall_s(both) == 4.0
    assert metrics.output_tok_per_s(both) == 5 / 4
    assert metrics.total_tok_per_s(both) == 20 / 4
    assert metrics.worst_stall_s(both) == 1.25


def test_counts_come_from_the_tokens_that_were_returned():
    assert RequestTimes(3, 0.0, (1.0, 2.0)).output_tokens == 2


def test_a_trials_value_is_the_median_over_the_requests_that_have_the_metric():
    assert metrics.trial_value("ttft_s", [ONE, LATE, NOTHING]) == 1.25
    assert metrics.trial_value("tpot_s", [ONE, LATE]) == pytest.approx(2.0 / 3)
    assert metrics.trial_value("tpot_s", [LATE]) is None
    assert metrics.trial_value("wall_s", [ONE, LATE]) == 4.0
    assert metrics.trial_value("worst_stall_s", [ONE]) == 1.25
    with pytest.raises(ValueError, match=r"output_tok_per_s.*allowed"):
        metrics.trial_value("output_tok_per_s", [ONE])


def test_every_metric_says_what_it_is():
    for name, metric in METRICS.items():
        assert metric.name == name and metric.formula and metric.unit and metric.of in ("trial", "request", "gap")
    assert set(TIME_METRICS) <= set(METRICS)
    # One word of another tool never means two of our numbers.
    for tool in ("vllm", "guidellm", "aiperf"):
        theirs = [m.aliases[tool] for m in METRICS.values() if tool in m.aliases]
        assert len(theirs) == len(set(theirs))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.99, 0.999]))
def test_a_percentile_is_numpys_or_refused(values, q):
    found = percentile(values, q)
    assert (found.n, found.q) == (len(values), q)
    if q != 0.5 and len(values) * (1 - q) < 1 - 1e-6:
        assert found.value is None
    else:
        assert found.value == pytest.approx(np.quantile(values, q), rel=1e-9, abs=1e-9)


def test_percentiles_need_enough_values():
    assert percentile([1.0] * 99, 0.99).value is None
    assert percentile([1.0] * 100, 0.99).value == 1.0
    assert percentile([1.0] * 9, 0.9).value is None
    assert percentile([3.0], 0.5).value == 3.0
    assert percentile([], 0.5).value is None
    with pytest.raises(ValueError, match="between 0 and 1"):
        percentile([1.0], 99)
