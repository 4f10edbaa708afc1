"""Did the machine hold still? Every trial's time against the middle of its engine's own, in the order it was run."""

from __future__ import annotations

import altair as alt
import pandas as pd

from qwen3lab.charts import theme
from qwen3lab.charts.gap import records, short_name
from qwen3lab.charts.show import Figure, show

LOG_FROM = 3.0
SPACING = 14


def drift(trials: pd.DataFrame) -> Figure:
    """One small panel a workload. A trend is drift, which alternation cancels; a lone point is a disturbed trial.

    trials  one row a trial: workload, block_id, slot, engine, warmup, wall_s, health
    """
    kept = trials[~trials["warmup"].astype(bool)].sort_values(["workload", "block_id", "slot"], kind="stable").copy()
    kept["order"] = kept.groupby("workload").cumcount() + 1
    median_s = kept.groupby(["workload", "engine"])["wall_s"].transform("median")
    kept["relative"] = kept["wall_s"] / median_s
    kept["short"] = kept["workload"].map(short_name)
    engines = theme.present(kept["engine"])
    flagged = int((kept["health"] != "pass").sum())
    spread = kept.groupby("engine", sort=False)["relative"].agg(["min", "max"])
    low, high = kept["relative"].min(), kept["relative"].max()
    scale, axis = alt.Scale(zero=False, padding=8), alt.Axis(format="~%", tickCount=3)
    if high > LOG_FROM * low:  # a platform that swings by so much would hide all else
        scale = alt.Scale(type="log", nice=False, padding=8)
        axis = alt.Axis(format="~%", values=theme.log_ticks(low, high, most=4))

    def chart(width: int) -> alt.FacetChart:
        columns = 4 if width == theme.WIDE else 2
        panel = (width - 56 - SPACING * (columns - 1)) // columns
        data = alt.Chart(kept)
        x = alt.X(
            "order:Q",
            title=None,
            scale=alt.Scale(nice=False, padding=6),
            axis=alt.Axis(tickMinStep=1, tickCount=4, grid=False),
        )
        y = alt.Y("relative:Q", title=None, scale=scale, axis=axis)
        tooltip = ["workload", "engine", "block_id", "slot", alt.Tooltip("wall_s:Q", format=".4g"), "health"]
        shown = data.encode(x=x, y=y, color=theme.color(engines), shape=theme.shape(engines), tooltip=tooltip)
        marks = [
            shown.transform_filter(f"datum.health {sign} 'pass'").mark_point(size=45, filled=filled, strokeWidth=1.5)
            for sign, filled, there in (("===", True, flagged < len(kept)), ("!==", False, flagged > 0))
            if there
        ]
        line = data.mark_rule(strokeWidth=1, color=theme.GRID).encode(y=alt.datum(1.0))
        return (
            alt.layer(line, *marks)
            .properties(width=panel, height=80)
            .facet(facet=alt.Facet("short:N", title=None, sort=None), columns=columns, spacing=SPACING)
        )

    return show(
        chart,
        title="Each trial's time against its engine's median, in the order they ran",
        alt=f"Time of {len(kept)} trials relative to the median of the same engine and workload, in running order. "
        + "; ".join(f"{r['engine']}: {r['min']:.0%} to {r['max']:.0%}" for r in records(spread.reset_index()))
        + f". {flagged} trials were flagged or rejected by the health gate.",
        caption="From left to right in running order; 100 % is the engine's own median. "
        + (f"The health gate flagged or rejected {flagged} of {len(kept)} trials, drawn hollow." if flagged else
           "The health gate passed every trial."),
        table=kept[["workload", "engine", "block_id", "slot", "wall_s", "relative", "health"]],
    )  # fmt: skip
