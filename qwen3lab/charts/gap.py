"""The gap between two engines: the forest of paired ratios with their intervals, and the throughput behind it.

A ratio is time of arm B over time of arm A from alternated blocks, so below 1 arm B needs less time. The verdict word
comes with the frame; a chart never decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from qwen3lab.charts import theme
from qwen3lab.charts.show import Figure, show

ROW_PX = 36
METRIC_WORDS = {
    "wall_s": "time from start to last token",
    "ttft_s": "time to first token",
    "tpot_s": "time per output token",
    "e2e_s": "time of a request",
    "worst_stall_s": "worst stall between tokens",
}


def ratio_forest(verdicts: Sequence[Mapping[str, Any]], metric: str = "wall_s") -> Figure:
    """One row a workload: ratio, interval, and the word of its verdict.

    verdicts  mappings with the fields of a verdict, all of the same two arms: workload, metric, arm_a, arm_b, ratio,
              ci_low, ci_high (None: there is none), n_blocks, margin, word, tokens
    """
    frame = _one_comparison(verdicts, metric)
    arm_a, arm_b, margin = (frame[column].iloc[0] for column in ("arm_a", "arm_b", "margin"))
    frame["short"] = frame["workload"].map(short_name)
    frame["ahead"] = [{"faster": arm_b, "slower": arm_a}.get(word, word) for word in frame["word"]]
    # The label of a row's right end; the workload before the bar keeps the rows apart.
    frame["says"] = [f"{row['workload']}|{_number(row['ratio'])} · {row['word']}" for row in records(frame)]
    band = pd.DataFrame({"low": [1 / (1 + margin)], "high": [1 + margin]})
    domain = _log_domain([*frame["ratio"], *frame["ci_low"], *frame["ci_high"], *band["low"], *band["high"]])

    def chart(width: int) -> alt.LayerChart:
        wide = width == theme.WIDE
        y = alt.Y("workload:N" if wide else "short:N", sort=None, title=None)
        x = alt.X(
            "ratio:Q",
            scale=alt.Scale(type="log", domain=list(domain), nice=False),
            title=f"time of {arm_b} ÷ time of {arm_a}" + (f"  (log scale; below 1 {arm_b} needs less)" if wide else ""),
            axis=alt.Axis(values=theme.log_ticks(*domain, most=8 if wide else 5), format="~g"),
        )
        color, shape = _ahead(arm_a, arm_b)
        rows = alt.Chart(frame)
        plot = alt.layer(
            alt.Chart(band).mark_rect(color=theme.BAND).encode(x="low:Q", x2="high:Q"),
            alt.Chart(pd.DataFrame({"one": [1.0]})).mark_rule(strokeWidth=1.5).encode(x="one:Q"),
            rows.mark_rule(strokeWidth=2.5).encode(x="ci_low:Q", x2="ci_high:Q", y=y, color=color),
            rows.mark_point(size=100).encode(x=x, y=y, color=color, shape=shape, tooltip=[
                "workload", alt.Tooltip("ratio:Q", format=".3f"), alt.Tooltip("ci_low:Q", format=".3f"),
                alt.Tooltip("ci_high:Q", format=".3f"), "word", "n_blocks", "tokens",
            ]),
        )  # fmt: skip
        said = alt.Axis(
            orient="right",
            labelExpr="split(datum.value, '|')[1]",
            labelFontWeight="bold",
            labelColor=_word_color(),
            grid=False,
        )
        words = rows.mark_point(opacity=0).encode(y=alt.Y("says:N", sort=None, title=None, axis=said))
        return alt.layer(plot, words).resolve_scale(y="independent").properties(height=ROW_PX * len(frame))

    return show(
        chart,
        title=f"{arm_b} against {arm_a}: {METRIC_WORDS.get(metric, metric)}",
        alt=f"Ratio of times, {arm_b} over {arm_a}, for {len(frame)} workloads. "
        + "; ".join(f"{r['workload']}: {_number(r['ratio'])}{_interval(r)}, {r['word']}" for r in records(frame)) + ".",
        caption=_forest_caption(frame, margin),
        table=frame[["workload", "ratio", "ci_low", "ci_high", "word", "tokens", "n_blocks"]],
    )  # fmt: skip


def throughput(trials: pd.DataFrame) -> Figure:
    """Every trial's output tokens per second, by workload and engine; a bar marks the median.

    trials  one row a trial: workload, engine, warmup, health, output_tok_per_s
    """
    kept = measured(trials).sort_values("workload", kind="stable")[["workload", "engine", "output_tok_per_s"]].copy()
    kept["short"] = kept["workload"].map(short_name)
    engines = theme.present(kept["engine"])
    by = kept.groupby(["workload", "short", "engine"], sort=False)["output_tok_per_s"]
    summary = by.agg(trials="size", min_tok_per_s="min", median_tok_per_s="median", max_tok_per_s="max").reset_index()

    def chart(width: int) -> alt.LayerChart:
        y = alt.Y("workload:N" if width == theme.WIDE else "short:N", sort=None, title=None)
        row = {"y": y, "yOffset": alt.YOffset("engine:N", sort=engines)}
        low, high = kept["output_tok_per_s"].min(), kept["output_tok_per_s"].max()
        axis = alt.Axis(format="~s", values=theme.log_ticks(low, high, most=8 if width == theme.WIDE else 5))
        scale = alt.Scale(type="log", nice=False, padding=12)
        color = theme.color(engines)
        x = alt.X("output_tok_per_s:Q", scale=scale, axis=axis, title="output tokens per second (log scale)")
        tooltip = ["workload", "engine", alt.Tooltip("output_tok_per_s:Q", format=",.1f")]
        return alt.layer(
            alt.Chart(kept)
            .mark_point(size=45, filled=False, strokeWidth=1.5)
            .encode(x=x, color=color, shape=theme.shape(engines), tooltip=tooltip, **row),
            alt.Chart(summary).mark_tick(thickness=3, height=13).encode(x="median_tok_per_s:Q", color=color, **row),
        ).properties(height=(ROW_PX + 4) * kept["workload"].nunique())

    said = (f"{r['workload']}, {r['engine']}: {r['median_tok_per_s']:.4g}" for r in records(summary))
    return show(
        chart,
        title="Output tokens per second, every trial",
        alt=f"Median output tokens per second of {len(engines)} engines. " + "; ".join(said) + ".",
        caption="A symbol is one trial, a bar the median of an engine's trials. These are unpaired, so the machine's "
        "drift is in them; the ratios are paired.",
        table=summary.drop(columns="short"),
    )


def short_name(workload: str) -> str:
    """'w1_single_decode' is 'w1' where there is no room; what has no number keeps its name."""
    number, _, rest = workload.partition("_")
    return number if rest and number[1:].isdigit() else workload


def measured(trials: pd.DataFrame) -> pd.DataFrame:
    """The trials that count: no warm-ups, and none that the health gate rejected."""
    return trials[~trials["warmup"].astype(bool) & (trials["health"] != "reject")]


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as dictionaries."""
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]


def _one_comparison(verdicts: Sequence[Mapping[str, Any]], metric: str) -> pd.DataFrame:
    """The verdicts on `metric` as a frame, workloads in order; ValueError where they are not one comparison."""
    frame = pd.DataFrame([dict(v) for v in verdicts if v["metric"] == metric])
    if frame.empty:
        have = ", ".join(sorted({str(v["metric"]) for v in verdicts}))
        raise ValueError(f"ratio_forest: no verdict on metric={metric!r}; there are: {have or 'none at all'}")
    pairs = frame[["arm_a", "arm_b", "margin"]].drop_duplicates()
    if len(pairs) > 1:
        raise ValueError(f"ratio_forest: {len(pairs)} comparisons in one chart; draw one for each pair of arms")
    for column in ("ratio", "ci_low", "ci_high"):
        frame[column] = pd.to_numeric(frame[column])
    return frame.sort_values("workload", kind="stable", ignore_index=True)


def _ahead(arm_a: str, arm_b: str) -> tuple[alt.Color, alt.Shape]:
    """A row wears the look of the arm that is ahead, and a neutral one where the verdict names none."""
    b, a = theme.looks([arm_b, arm_a]).values()
    domain = [arm_b, arm_a, "same", "undecided"]
    colors, shapes = [b.color, a.color, theme.NEUTRAL, theme.NEUTRAL], [b.shape, a.shape, "diamond", "cross"]
    return (
        alt.Color("ahead:N", scale=alt.Scale(domain=domain, range=colors), legend=None),
        alt.Shape("ahead:N", scale=alt.Scale(domain=domain, range=shapes), legend=None),
    )


def _word_color() -> dict[str, Any]:
    """An axis label's colour: ink where its word claims something, muted where it does not."""
    claims = "indexof(datum.value, '· faster') > 0 || indexof(datum.value, '· slower') > 0"
    return {"condition": {"test": claims, "value": theme.INK}, "value": theme.MUTED}


def _number(ratio: float) -> str:
    return "no ratio" if math.isnan(ratio) else f"{ratio:.2f}"


def _interval(row: Mapping[str, Any]) -> str:
    return "" if math.isnan(row["ci_low"]) else f" ({row['ci_low']:.2f} to {row['ci_high']:.2f})"


def _forest_caption(frame: pd.DataFrame, margin: float) -> str:
    blocks = sorted(set(frame["n_blocks"]))
    counted = f"{blocks[0]}" if len(blocks) == 1 else f"{blocks[0]} to {blocks[-1]}"
    return (
        f"Lines are 95 % t intervals over {counted} alternated blocks. The band is ±{margin * 100:g} %: "
        "inside it the two count as the same. A row wears the colour of the engine ahead; "
        "grey is undecided (a cross) or the same (a diamond)."
    )


def _log_domain(values: Iterable[float]) -> tuple[float, float]:
    """The span of the finite values and 1, with a little air, for a log axis."""
    logs = [math.log(v) for v in values if v is not None and math.isfinite(v) and v > 0] + [0.0]
    air = max(0.06 * (max(logs) - min(logs)), 0.05)
    return math.exp(min(logs) - air), math.exp(max(logs) + air)
