"""The gap attributed: the bars lead from the floor to our step, and what no part accounts for is shown."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd
import pytest

from qwen3lab.measure import gap
from qwen3lab.measure.profiling import Profile

PROFILE = Profile(
    kind="decode", steps=8, wall_us=1000.0, profiled_us=1500.0, busy_us=None, launches=10.0, floor_us=300.0,
    bound="bytes", operations=pd.DataFrame(),
    parts=pd.DataFrame(
        {"part": ["metadata", "products", "attention", "other operations"], "share": [0.1, 0.6, 0.2, 0.1]}
    ),
)  # fmt: skip


def test_the_parts_lead_from_the_floor_to_our_step():
    rows = gap.attributed(PROFILE, ours_us=1100.0, rival_us=1700.0, rival="vllm")
    parts = {row["label"]: row["us"] for row in rows if row["role"] == "part"}
    assert parts == pytest.approx(
        {
            "floor (bytes)": 300.0,
            "metadata": 100.0,
            "products, beyond the floor": 600.0 - 225.0,
            "attention, beyond the floor": 200.0 - 75.0,
            "other operations": 100.0,
            "unaccounted for": 100.0,
        }
    )
    assert sum(parts.values()) == pytest.approx(1100.0), "the last bar ends where our step does"
    assert [(row["label"], row["us"]) for row in rows[-2:]] == [("qwen3lab", 1100.0), ("vllm", 1700.0)]


def test_a_step_is_the_median_time_per_token_of_the_runs_that_count():
    samples = pd.DataFrame(
        [
            {"workload": workload, "engine": engine, "warmup": warmup, "tpot_s": s}
            for workload, engine, warmup, s in (
                ("w1", "qwen3lab", False, 0.001), ("w1", "qwen3lab", False, 0.003), ("w1", "qwen3lab", True, 9.0),
                ("w1", "vllm", False, 0.004), ("w2", "vllm", False, 8.0),
            )
        ]
    )  # fmt: skip
    rows = gap.between(samples, SimpleNamespace(id="w1"), PROFILE, "qwen3lab", "vllm")
    assert [row["us"] for row in rows[-2:]] == pytest.approx([2000.0, 4000.0])
