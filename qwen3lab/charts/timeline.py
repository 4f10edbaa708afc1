"""When each token came: the gaps between tokens, over time as a stream under an injected prompt sees them, and in all.

A gap is the time between one token of a request and the next, on the host. Thousands of gaps are drawn as what a reader
can see: for each slice of time the middle and the worst one, and a distribution by its quantiles.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from qwen3lab.charts import theme
from qwen3lab.charts.gap import records
from qwen3lab.charts.show import Figure, show

SLICES = 120
# Even steps, finer in the tail: the tail is where a stall shows.
QUANTILES = np.unique(np.r_[np.linspace(0, 0.9, 46), np.linspace(0.9, 0.99, 19), np.linspace(0.99, 1, 11)])


def itl_timeline(samples: pd.DataFrame, workload: str = "w6_decode_stall") -> Figure:
    """Gaps over time in one trial of each engine: the trial whose worst gap is the median of that engine's trials.

    samples  one row a request of a trial: workload, engine, trial_id, request, warmup, prompt_tokens, arrival_s, ttft_s
             and token_times_s, in seconds since the run's start. A request that arrives later than the others is an
             injected one: the span from its arrival to its first token is shaded
    """
    kept = _measured(samples, workload)
    engines = theme.present(kept["engine"])
    trials = {engine: _typical_trial(kept[kept["engine"] == engine]) for engine in engines}
    slices = pd.concat([_slices(trial).assign(engine=engine) for engine, trial in trials.items()], ignore_index=True)
    spans = pd.concat([_injected(trial).assign(engine=engine) for engine, trial in trials.items()], ignore_index=True)
    spans["late"] = spans["from_s"] > slices["at_s"].max() / 2

    def chart(width: int) -> alt.VConcatChart:
        y = alt.Y(
            "worst_ms:Q",
            title="gap between tokens (ms)",
            scale=alt.Scale(domain=[0, 1.2 * slices["worst_ms"].max()], nice=False),  # room for the injection's label
            axis=alt.Axis(tickCount=4),
        )
        rows, looks = [], theme.looks(engines)
        for engine in engines:
            title = "time since the run began (s)" if engine == engines[-1] else None
            x = alt.X("at_s:Q", title=title, axis=alt.Axis(tickCount=5))
            mine = (slices[slices["engine"] == engine], spans[spans["engine"] == engine])
            row = _timeline_row(looks[engine], *mine, x, y)
            heading = alt.Title(engine, anchor="start", offset=6)
            rows.append(row.properties(width=width - 66, height=140, title=heading))
        return alt.vconcat(*rows, spacing=14).resolve_scale(x="shared", y="shared")

    worst = slices.groupby("engine", sort=False).agg(median_ms=("median_ms", "median"), worst_ms=("worst_ms", "max"))
    said = "; ".join(
        f"{r['engine']}: median {r['median_ms']:.3g} ms, worst {r['worst_ms']:.3g} ms"
        for r in records(worst.reset_index())
    )
    return show(
        chart,
        title=f"Gaps between tokens in {workload}, over one trial",
        alt=f"Gap between tokens against time for each engine. {said}. {_injection_words(spans)}",
        caption="For each slice of time the median gap (line) and the worst (symbols), over all streams. Shown is each "
        f"engine's trial whose worst gap is the median of its trials. {_injection_words(spans)}".strip(),
        table=slices[["engine", "at_s", "median_ms", "worst_ms", "gaps"]],
    )


def itl_ecdf(samples: pd.DataFrame, workload: str = "w6_decode_stall") -> Figure:
    """The share of all gaps that are no longer than a given one, pooled over requests and trials, a line an engine."""
    kept = _measured(samples, workload)
    engines = theme.present(kept["engine"])
    gaps = {engine: _gaps(kept[kept["engine"] == engine])["gap_ms"].to_numpy() for engine in engines}
    positive = {engine: values[values > 0] for engine, values in gaps.items()}
    curves = pd.concat(
        [
            pd.DataFrame({"engine": engine, "share": QUANTILES, "gap_ms": np.quantile(values, QUANTILES)})
            for engine, values in positive.items() if len(values)
        ],
        ignore_index=True,
    )  # fmt: skip

    def chart(width: int) -> alt.LayerChart:
        ticks = theme.log_ticks(curves["gap_ms"].min(), curves["gap_ms"].max(), most=9 if width == theme.WIDE else 6)
        x = alt.X(
            "gap_ms:Q",
            title="gap between tokens (ms, log scale)",
            scale=alt.Scale(type="log", nice=False, padding=8),
            axis=alt.Axis(format="~g", values=ticks),
        )
        y = alt.Y("share:Q", title="gaps no longer than that", axis=alt.Axis(format="%", tickCount=5))
        tooltip = ["engine", alt.Tooltip("share:Q", format=".1%"), alt.Tooltip("gap_ms:Q", format=".3g")]
        color = theme.color(engines)
        lines = (
            alt.Chart(curves).mark_line().encode(x=x, y=y, color=color, strokeDash=theme.dash(engines), tooltip=tooltip)
        )
        ends = curves.groupby("engine", sort=False).tail(1)
        points = alt.Chart(ends).mark_point(size=90).encode(x=x, y=y, color=color, shape=theme.shape(engines))
        return alt.layer(lines, points).properties(height=240)

    table = pd.DataFrame([_quantile_row(engine, values) for engine, values in gaps.items()])
    said = "; ".join(
        f"{r['engine']}: p50 {r['p50_ms']:.3g} ms, p99 {r['p99_ms']:.3g} ms, worst {r['worst_ms']:.3g} ms"
        for r in records(table)
    )
    zeros = sum(int((values == 0).sum()) for values in gaps.values())
    return show(
        chart,
        title=f"Gaps between tokens in {workload}, all trials",
        alt=f"Cumulative share of gaps between tokens for each engine. {said}.",
        caption="Pooled over requests and trials; a symbol marks each engine's longest gap."
        + (f" {zeros} gaps of 0 ms (tokens of one step) are left out of the lines." if zeros else ""),
        table=table,
    )


def _measured(samples: pd.DataFrame, workload: str) -> pd.DataFrame:
    kept = samples[(samples["workload"] == workload) & ~samples["warmup"].astype(bool)]
    if kept.empty:
        have = ", ".join(sorted(set(samples["workload"])))
        raise ValueError(f"no measured samples of workload={workload!r}; the frame holds: {have or 'nothing'}")
    return kept


def _gaps(samples: pd.DataFrame) -> pd.DataFrame:
    """One row a gap: trial_id, at_s (when the later token came) and gap_ms."""
    parts = []
    for trial_id, times in zip(samples["trial_id"], samples["token_times_s"], strict=True):
        at_s = np.asarray(times, dtype=float)
        parts.append(pd.DataFrame({"trial_id": trial_id, "at_s": at_s[1:], "gap_ms": np.diff(at_s) * 1e3}))
    return pd.concat(parts, ignore_index=True)


def _typical_trial(samples: pd.DataFrame) -> pd.DataFrame:
    """The samples of the trial whose worst gap is the (lower) median of the worst gaps."""
    worst = _gaps(samples).groupby("trial_id", sort=True)["gap_ms"].max().sort_values(kind="stable").index
    if worst.empty:
        raise ValueError(f"engine={samples['engine'].iloc[0]!r}: no request has two tokens, so there is no gap to draw")
    chosen: pd.DataFrame = samples[samples["trial_id"] == worst[(len(worst) - 1) // 2]]
    return chosen


def _slices(trial: pd.DataFrame) -> pd.DataFrame:
    """The trial's gaps in at most SLICES equal slices of time: at_s (middle), median_ms, worst_ms, gaps (how many)."""
    gaps = _gaps(trial)
    edges = np.linspace(0.0, gaps["at_s"].max(), SLICES + 1)
    which = np.clip(np.searchsorted(edges, gaps["at_s"], side="left") - 1, 0, SLICES - 1)
    by_slice = gaps["gap_ms"].groupby(which)
    at_s = ((edges[:-1] + edges[1:]) / 2)[np.unique(which)]
    found = {"at_s": at_s, "median_ms": by_slice.median(), "worst_ms": by_slice.max(), "gaps": by_slice.size()}
    return pd.DataFrame(found).reset_index(drop=True)


def _injected(trial: pd.DataFrame) -> pd.DataFrame:
    """Requests that arrived after the first one had a token: from_s, to_s (own first token) and a label."""
    first_token_s = (trial["arrival_s"] + trial["ttft_s"]).min()
    late = trial[trial["arrival_s"] > first_token_s]
    return pd.DataFrame(
        {
            "from_s": late["arrival_s"],
            "to_s": late["arrival_s"] + late["ttft_s"],
            "label": [f"{n:,} prompt tokens arrive" for n in late["prompt_tokens"]],
        }
    )


def _timeline_row(look: theme.Look, slices: pd.DataFrame, spans: pd.DataFrame, x: alt.X, y: alt.Y) -> alt.LayerChart:
    span, gaps = alt.Chart(spans), alt.Chart(slices)
    tooltip: list[Any] = [alt.Tooltip(f"{c}:Q", format=".4g") for c in ("at_s", "median_ms", "worst_ms", "gaps")]
    layers = [
        gaps.mark_line(color=look.color, interpolate="step-before").encode(x=x, y="median_ms:Q"),
        gaps.mark_point(color=look.color, shape=look.shape, size=22, filled=False).encode(x=x, y=y, tooltip=tooltip),
    ]
    if not spans.empty:
        region = span.mark_rect(color=theme.BAND).encode(x="from_s:Q", x2="to_s:Q")
        layers = [region, span.mark_rule(strokeDash=[4, 3]).encode(x="from_s:Q"), *layers]
    for late, side in spans.groupby("late"):  # the label stands on the side with more room
        place = {"align": "right", "dx": -5} if late else {"align": "left", "dx": 5}
        label = alt.Chart(side).mark_text(color=theme.MUTED, **place)
        layers.append(label.encode(x="from_s:Q", y=alt.value(8), text="label:N"))
    return alt.layer(*layers)


def _injection_words(spans: pd.DataFrame) -> str:
    if spans.empty:
        return ""
    waits = ", ".join(f"{r['engine']} {(r['to_s'] - r['from_s']) * 1e3:.3g} ms" for r in records(spans))
    return f"Shaded: from a prompt's arrival in mid-run to its first token ({waits})."


def _quantile_row(engine: str, gaps_ms: np.ndarray[Any, Any]) -> dict[str, Any]:
    p50, p90, p99 = np.quantile(gaps_ms, [0.5, 0.9, 0.99])
    return {
        "engine": engine,
        "gaps": len(gaps_ms),
        "p50_ms": p50,
        "p90_ms": p90,
        "p99_ms": p99,
        "worst_ms": gaps_ms.max(),
    }
