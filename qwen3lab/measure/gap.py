"""The gap to a rival, attributed: the floor, what each part of our step takes beyond it, and what none accounts for."""

from __future__ import annotations

from typing import Any

import pandas as pd

from qwen3lab.measure.profiling import Profile
from qwen3lab.measure.workloads import Workload


def between(samples: pd.DataFrame, workload: Workload, profile: Profile, ours: str, rival: str) -> list[dict[str, Any]]:
    """`attributed` from a comparison's samples: each arm's median time per output token over its requests and runs."""
    mine = samples[(samples["workload"] == workload.id) & ~samples["warmup"].astype(bool)]
    step_us = 1e6 * mine.groupby("engine")["tpot_s"].median()
    return attributed(profile, float(step_us[ours]), float(step_us[rival]), rival)


def attributed(profile: Profile, ours_us: float, rival_us: float, rival: str) -> list[dict[str, Any]]:
    """Steps for charts.waterfall, in µs a decode step: label, us, role.

    ours_us, rival_us  what a step takes in the comparison: the time per output token of all rows together. The parts
                       are the profile's shares of its own step; what its step differs from `ours_us` is the residual
    """
    parts = {str(r["part"]): float(r["share"]) * profile.wall_us for _, r in profile.parts.iterrows()}
    inside = sum(parts.values())
    rows = [{"label": f"floor ({profile.bound})", "us": profile.floor_us, "role": "part"}]
    # The floor is that of products and attention: what they take beyond it, in the proportion in which they take time.
    bound = {name: parts[name] for name in ("products", "attention")}
    for name, us in parts.items():
        if name in bound:
            us -= profile.floor_us * us / sum(bound.values())
            name = f"{name}, beyond the floor"
        rows.append({"label": name, "us": us, "role": "part"})
    rows.append({"label": "unaccounted for", "us": ours_us - inside, "role": "part"})
    rows.append({"label": "qwen3lab", "us": ours_us, "role": "qwen3lab"})
    rows.append({"label": rival, "us": rival_us, "role": rival})
    return rows
