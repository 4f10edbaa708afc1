"""Where a step's time goes: one bar a part, a panel a step."""

from __future__ import annotations

import altair as alt
import pandas as pd

from qwen3lab.charts import theme
from qwen3lab.charts.gap import records
from qwen3lab.charts.show import Figure, show

BAR_PX = 26
LETTER_PX = 6.5  # of an axis label, about: panels that are stacked must be told how much room their labels leave


def step_parts(parts: pd.DataFrame, engine: str = "qwen3lab") -> Figure:
    """Each part's share of a step, in percent, with its time beside it.

    parts  step (which one: "w1, decode"), part, share (of the step, 0 to 1), us (share · the step's time)
    """
    frame = parts.copy()
    frame["percent"] = 100 * frame["share"]
    frame["says"] = [f"{_time(row['us'])} · {row['percent']:.0f} %" for row in records(frame)]
    steps, order = list(dict.fromkeys(frame["step"])), list(dict.fromkeys(frame["part"]))
    look = theme.looks([engine])[engine]
    most = max(frame["percent"].max(), 1.0)

    def chart(width: int) -> alt.VConcatChart:
        labels = min(LETTER_PX * max(map(len, order)) + 10, 245 if width == theme.WIDE else 130)
        panels = []
        for step in steps:
            title = f"share of the step (%), {engine}" if step == steps[-1] else None
            x = alt.X(
                "percent:Q",
                title=title,
                scale=alt.Scale(domain=[0, most * 1.35], nice=False),
                axis=alt.Axis(tickCount=5),
            )
            y = alt.Y("part:N", sort=order, title=None, axis=alt.Axis(labelLimit=labels))
            base = alt.Chart(frame[frame["step"] == step]).encode(x=x, y=y)
            panels.append(
                alt.layer(
                    base.mark_bar(color=look.color, height=BAR_PX - 10).encode(tooltip=["part", "says"]),
                    base.mark_text(align="left", dx=5, fontSize=13).encode(text="says:N"),
                ).properties(
                    width=width - labels - 20, height=BAR_PX * len(order), title=alt.Title(step, anchor="start")
                )
            )
        return alt.vconcat(*panels, spacing=14)

    said = (f"{r['step']}, {r['part']}: {r['says']}" for r in records(frame))
    return show(
        chart,
        title="Where a step's time goes",
        alt=f"Parts of a step of {engine}, each with its time and share. " + "; ".join(said) + ".",
        caption="Shares are of steps under the profiler, which makes short operations longer than they are; times are "
        "these shares of a step that ran without it.",
        table=frame[["step", "part", "us", "share"]],
    )


def _time(us: float) -> str:
    return f"{us / 1e3:.3g} ms" if us >= 1000 else f"{us:.3g} µs"
