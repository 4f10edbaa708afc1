"""Kernels: how long a call takes beside the least it could, and who is ahead at which size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from qwen3lab.charts import theme
from qwen3lab.charts.gap import records
from qwen3lab.charts.show import Figure, show

CELL_PX = 34
PANEL_PX = 150
AXIS_PX = 60  # what the y axis takes; panels stand 20 apart
BINARY = "datum.value >= 1024 ? datum.value / 1024 + 'k' : datum.value"  # sizes are powers of two
KEPT = ("ratio", "ci_low", "ci_high", "word", "n_blocks", "margin")


def kernel_times(rows: pd.DataFrame, x: str, *, panel: str | None = None, what: str = "") -> Figure:
    """Time of a call, in floors, against size `x`: a line an arm, a panel for each value of `panel`.

    rows  kernel_grid.Grid.rows, of one size in all but `x` and `panel`: x, panel, arm, time_us, low_us, high_us,
          floor_us, share. Rows without a time are left out, and said.
    """
    timed = rows[rows["time_us"].notna()].copy() if "time_us" in rows else rows.iloc[:0]
    if timed.empty:
        raise ValueError("kernel_times: no row has a time_us; an arm without one has its reason in `reason`")
    arms = theme.present(timed["arm"])
    timed["panel"] = "" if panel is None else [f"{panel} {value}" for value in timed[panel]]
    panels = list(dict.fromkeys(timed["panel"]))
    timed["floors"] = timed["time_us"] / timed["floor_us"]
    timed["floor"] = 1.0
    high = max(timed["floors"].max(), 2.0) * 1.15
    low = min(timed["floors"].min(), 1.0) / 1.05
    values = sorted(timed[x].unique())
    marks = values if len(values) <= 6 else theme.log_ticks(values[0], values[-1], most=6)

    def chart(width: int) -> alt.Chart:
        columns = min(len(panels), 3 if width == theme.WIDE else 1)
        scale = alt.Scale(type="log", domain=[low, high], nice=False)
        ticks = alt.Axis(values=theme.log_ticks(low, high, most=6), format="~g")
        across = alt.X(
            f"{x}:Q", title=f"{x} (log scale)",
            scale=alt.Scale(type="log", domain=[values[0] / 1.15, values[-1] * 1.15], nice=False),
            axis=alt.Axis(values=marks, labelExpr=BINARY),
        )  # fmt: skip
        y = alt.Y("floors:Q", scale=scale, axis=ticks, title="time ÷ floor (log scale)")
        color = theme.color(arms, "arm")
        base = alt.Chart(timed).encode(x=across)
        tooltip = [x, "arm", alt.Tooltip("time_us:Q", format=".2f"), alt.Tooltip("share:Q", format=".0%")]
        layers = alt.layer(
            base.mark_line(color=theme.NEUTRAL, strokeDash=[3, 3], strokeWidth=1.5).encode(
                y=alt.Y("floor:Q", scale=scale, axis=ticks)
            ),
            base.mark_line().encode(y=y, color=color, strokeDash=theme.dash(arms, "arm")),
            base.mark_point(size=45).encode(y=y, color=color, shape=theme.shape(arms, "arm"), tooltip=tooltip),
        ).properties(width=(width - AXIS_PX + 20) // columns - 20, height=PANEL_PX if len(panels) > 1 else 260)
        if len(panels) == 1:
            return layers
        return layers.facet(facet=alt.Facet("panel:N", sort=panels, title=None), columns=columns)

    reasons = rows.loc[rows.get("time_us", pd.Series(index=rows.index, dtype=float)).isna(), ["arm", "reason"]]
    absent = "; ".join(f"{arm}: {reason}" for arm, reason in dict.fromkeys(reasons.itertuples(index=False, name=None)))
    said = (
        f"{r['arm']} at {x} {r[x]}{', ' + r['panel'] if r['panel'] else ''}: {r['time_us']:.3g} µs, {r['share']:.0%} "
        "of the ceiling"
        for r in records(timed)
    )
    columns = [*([panel] if panel else []), x, "arm", "time_us", "low_us", "high_us", "floor_us", "share"]
    return show(
        chart,
        title=f"Time of a call{': ' + what if what else ''}",
        alt=f"Time of a call by {x}, {len(arms)} arms. " + "; ".join(said) + ".",
        caption="A point is the median of an arm's timings over the floor, the dashed line: the least bytes, or "
        "products, that an implementation can do, at the rate this machine was measured to reach. Times: the table."
        + (f" Not drawn: {absent}." if absent else ""),
        table=timed[columns],
    )


def ratio_grid(
    rows: pd.DataFrame, verdicts: Sequence[Mapping[str, Any]], rival: str, ours: str, x: str, y: str
) -> Figure:
    """Ratio of times, `ours` over `rival`, in a field of sizes; each cell wears the colour of the arm ahead.

    rows  kernel_grid.Grid.rows, whose `case` joins a size to its verdict; of one size in all but `x` and `y`
    """
    sizes = rows.drop_duplicates("case").set_index("case")
    frame = pd.DataFrame(
        [
            {x: sizes.at[v["workload"], x], y: sizes.at[v["workload"], y], **{k: v[k] for k in KEPT}}
            for v in verdicts
            if (v["arm_a"], v["arm_b"]) == (rival, ours) and v["workload"] in sizes.index and v["ratio"] is not None
        ]
    )
    if frame.empty:
        have = ", ".join(sorted({f"{v['arm_b']} against {v['arm_a']}" for v in verdicts}))
        raise ValueError(f"ratio_grid: no ratio of {ours!r} against {rival!r}; there are: {have or 'none at all'}")
    frame["ahead"] = [{"faster": ours, "slower": rival}.get(word, word) for word in frame["word"]]
    frame["says"] = [f"{ratio:.2f}" for ratio in frame["ratio"]]

    def chart(width: int) -> alt.LayerChart:
        colors = [look.color for look in theme.looks([ours, rival]).values()]
        scale = alt.Scale(domain=[ours, rival, "same", "undecided"], range=[*colors, theme.NEUTRAL, theme.BAND])
        apart = alt.Scale(paddingInner=0.08)
        base = alt.Chart(frame).encode(
            x=alt.X(f"{x}:O", title=x, scale=apart, axis=alt.Axis(labelAngle=0, labelExpr=BINARY)),
            y=alt.Y(f"{y}:O", title=y, scale=apart, sort="descending"),
        )
        fill = alt.Color(
            "ahead:N",
            scale=scale,
            legend=alt.Legend(title="ahead", labelLimit=300, columns=4 if width == theme.WIDE else 1),
        )
        # The cell is its border and its number: text on a filled cell would need a contrast of its own for each colour.
        return alt.layer(
            base.mark_rect(filled=False, strokeWidth=3, cornerRadius=3).encode(stroke=fill),
            base.mark_text(fontSize=13, fontWeight="bold").encode(text="says:N"),
        ).properties(height=CELL_PX * frame[y].nunique(), width=min(width - 90, 110 * frame[x].nunique()))

    said = (f"{y} {r[y]}, {x} {r[x]}: {r['says']}, {r['word']}" for r in records(frame))
    return show(
        chart,
        title=f"{ours} against {rival}: time of a call",
        alt=f"Ratio of times, {ours} over {rival}, by {x} and {y}; below 1 {ours} needs less. " + "; ".join(said) + ".",
        caption=f"Below 1, {ours} needs less time. A cell's border says who is ahead by its 95 % interval over "
        f"{frame['n_blocks'].iloc[0]} blocks, with a margin of ±{frame['margin'].iloc[0] * 100:g} %.",
        table=frame[[y, x, "ratio", "ci_low", "ci_high", "word", "n_blocks"]],
    )
