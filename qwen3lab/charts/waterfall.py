"""The gap as a waterfall: from the floor, part by part, to our step, and the rival's beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from qwen3lab.charts import theme
from qwen3lab.charts.gap import records
from qwen3lab.charts.show import Figure, show

BAR_PX = 28
LETTER_PX = 6.5


def waterfall(steps: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Each step of the way from a floor to totals, as one bar from where the last one ended.

    steps  label, us, role: "part" (goes on from the last bar), or an engine's name (a total, drawn from 0 in its look)
    """
    rows, at = [], 0.0
    for step in steps:
        total = step["role"] != "part"
        begin, end = (0.0, step["us"]) if total else (at, at + step["us"])
        at = end
        rows.append({**step, "from_us": min(begin, end), "to_us": max(begin, end), "says": _said(step["us"], total)})
    frame = pd.DataFrame(rows)
    engines = theme.present(role for role in frame["role"] if role != "part")
    looks = theme.looks(engines)
    order = list(frame["label"])
    if len(set(order)) != len(order):
        raise ValueError(f"waterfall: labels {order} are not each once")

    def chart(width: int) -> alt.LayerChart:
        labels = 240 if width == theme.WIDE else 130
        domain, colors = [*engines, "part"], [*(look.color for look in looks.values()), theme.NEUTRAL]
        scale = alt.Scale(domain=[0, frame["to_us"].max() * 1.25], nice=False)
        y = alt.Y("label:N", sort=order, title=None, axis=alt.Axis(labelLimit=labels))
        base = alt.Chart(frame).encode(y=y)
        return alt.layer(
            base.mark_bar(height=BAR_PX - 10).encode(
                x=alt.X("from_us:Q", scale=scale, title="µs a step"), x2="to_us:Q",
                color=alt.Color("role:N", scale=alt.Scale(domain=domain, range=colors), legend=None),
                tooltip=["label", "says"],
            ),
            base.mark_text(align="left", dx=5, fontSize=13).encode(x=alt.X("to_us:Q", scale=scale), text="says:N"),
        ).properties(height=BAR_PX * len(order))  # fmt: skip

    return show(
        chart,
        title=title,
        alt=f"{title}: " + "; ".join(f"{r['label']} {r['says']}" for r in records(frame)) + ".",
        caption="Bars in an engine's colour are whole steps, from 0; grey ones lead from one to the next. What no part "
        "accounts for is a bar of its own.",
        table=frame[["label", "us", "role"]],
    )


def _said(us: float, total: bool) -> str:
    size = f"{abs(us) / 1e3:.3g} ms" if abs(us) >= 1000 else f"{abs(us):.3g} µs"
    return size if total else f"{'−' if us < 0 else '+'}{size}"
