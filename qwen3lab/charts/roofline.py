"""The roofline: what each call reached, beside what this machine could do at its ratio of work to bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from qwen3lab.charts import theme
from qwen3lab.charts.gap import records
from qwen3lab.charts.show import Figure, show


def roofline(rows: pd.DataFrame, ceilings: Mapping[str, float], what: str = "") -> Figure:
    """A point a timed row at (FLOP a byte, TFLOP/s), under the roof of measured ceilings (Williams et al. 2009).

    rows      kernel_grid.Grid.rows: case, arm, gbps, tflops, share; rows without a time are left out
    ceilings  read_gbps and product_tflops, as kernel_timing.Ceilings has them
    """
    timed = rows[rows["tflops"].notna()].copy() if "tflops" in rows else rows.iloc[:0]
    if timed.empty:
        raise ValueError("roofline: no row has a rate; an arm without one has its reason in `reason`")
    timed["intensity"] = 1e3 * timed["tflops"] / timed["gbps"]
    arms = theme.present(timed["arm"])
    bandwidth, most = ceilings["read_gbps"] / 1e3, ceilings["product_tflops"]
    ridge = most / bandwidth
    left, right = min(timed["intensity"].min(), ridge) / 2, max(timed["intensity"].max(), ridge) * 2
    roof = pd.DataFrame({"intensity": [left, ridge, right], "tflops": [left * bandwidth, most, most]})
    low, high = timed["tflops"].min() / 2, most * 2

    def chart(width: int) -> alt.LayerChart:
        ticks = 6 if width == theme.WIDE else 4
        x = alt.X(
            "intensity:Q", title="FLOP per byte (log scale)", axis=alt.Axis(values=theme.log_ticks(left, right, ticks)),
            scale=alt.Scale(type="log", domain=[left, right], nice=False),
        )  # fmt: skip
        y = alt.Y(
            "tflops:Q", title="TFLOP/s (log scale)", axis=alt.Axis(values=theme.log_ticks(low, high, 6), format="~g"),
            scale=alt.Scale(type="log", domain=[low, high], nice=False),
        )  # fmt: skip
        tooltip = ["case", "arm", alt.Tooltip("tflops:Q", format=".3g"), alt.Tooltip("share:Q", format=".0%")]
        return alt.layer(
            alt.Chart(roof).mark_line(color=theme.NEUTRAL, clip=True).encode(x=x, y=y),
            alt.Chart(timed).mark_point(size=40, filled=False, strokeWidth=1.5).encode(
                x=x, y=y, color=theme.color(arms, "arm"), shape=theme.shape(arms, "arm"), tooltip=tooltip
            ),
        ).properties(height=280)  # fmt: skip

    best = timed.loc[timed.groupby("arm", sort=False)["share"].idxmax()]
    said = (f"{r['arm']}: at best {r['share']:.0%} of its ceiling, at {r['case']}" for r in records(best))
    return show(
        chart,
        title=f"Roofline{': ' + what if what else ''}",
        alt=f"Rates of {len(timed)} calls under a roof of {_said(ceilings)}. " + "; ".join(said) + ".",
        caption=f"The roof is what this machine was measured to reach: {_said(ceilings)}. Work and bytes are the least "
        "that an implementation can do.",
        table=timed[["case", "arm", "intensity", "gbps", "tflops", "share"]],
    )


def _said(ceilings: Mapping[str, Any]) -> str:
    return f"{ceilings['read_gbps']:.4g} GB/s read and {ceilings['product_tflops']:.4g} TFLOP/s"
