"""One theme: the colours and shapes of engines, the type, the grid. A reader learns them once.

Colours are Okabe and Ito's set for colour-blind readers (Color Universal Design, 2008), only those with a contrast of
at least 3:1 on white; in grey they run together, so each engine has a shape and a dash of its own besides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

INK = "#1f2328"  # text
MUTED = "#59636e"  # axes, notes; 5.9:1 on white
GRID = "#d8dee4"  # what must be there and must not be noticed
BAND = "#eaeef2"  # a region: margins, the prefill of an injected prompt
NEUTRAL = "#6e7781"  # a mark that belongs to no engine

# The same on a dark page, whose style sheet replaces each by its brother; so do the engines' colours.
NIGHT = {INK: "#e6edf3", MUTED: "#9aa5b1", GRID: "#30363d", BAND: "#222a33", NEUTRAL: "#9aa5b1"}

FONT = "Helvetica, Arial, sans-serif"
WIDE, NARROW = 740, 340  # width of a figure in px: on a desk, on a phone


@dataclass(frozen=True)
class Look:
    """How an engine's marks are told apart: by colour, and without it by shape (points) and dash (lines).

    `night` is the colour on a dark page, `glyph` the shape in running text.
    """

    color: str
    night: str
    shape: str
    glyph: str
    dash: tuple[int, int]


ENGINES = {
    "qwen3lab": Look("#0072b2", "#56b4e9", "circle", "●", (1, 0)),
    "vllm": Look("#d55e00", "#f28a3c", "square", "■", (7, 3)),
    "transformers": Look("#009e73", "#35c79b", "triangle-up", "▲", (2, 2)),
    "nano-vllm": Look("#cc79a7", "#dd9cc0", "diamond", "◆", (9, 2)),
}

# What an engine rests on looks like the engine, in charts where that is not drawn.
KERNELS = {
    "FlashAttention": ENGINES["vllm"],
    "torch": ENGINES["transformers"],
    "torch.compile": ENGINES["nano-vllm"],
}


# Further arms of an engine in one chart: its parent, or itself with something switched.
SIBLINGS = (
    Look(INK, NIGHT[INK], "triangle-down", "▼", (4, 2)),
    Look("#7a4d00", "#d4a24a", "triangle-left", "◀", (1, 2)),
)


def engine_of(arm: str) -> str:
    """The engine or kernel that an arm's name begins with ("qwen3lab again"); ValueError for one without a look.

    A colour that changes from page to page misleads, so there is no default.
    """
    name = arm.split(" ")[0]
    known = ENGINES | KERNELS
    if name not in known:
        raise ValueError(f"arm={arm!r} has no colour; known: {', '.join(known)}. Give it one in theme.ENGINES")
    return name


def looks(arms: Sequence[str]) -> dict[str, Look]:
    """Each arm's look in a chart of these: the first arm of an engine wears the engine's, the next are its siblings."""
    found: dict[str, Look] = {}
    siblings = iter(SIBLINGS * len(arms))
    worn: set[str] = set()
    for arm in arms:
        engine = engine_of(arm)
        found[arm] = next(siblings) if engine in worn else (ENGINES | KERNELS)[engine]
        worn.add(engine)
    return found


def night_colors() -> dict[str, str]:
    """Every colour of a drawing → what stands for it on a dark page."""
    return NIGHT | {look.color: look.night for look in (*ENGINES.values(), *SIBLINGS)}


def present(arms: Iterable[str]) -> list[str]:
    """The distinct arms, by the theme's order of engines, ours first, so that legends agree from chart to chart.

    Of an engine's arms, the one that bears its plain name comes first.
    """
    order = list(ENGINES | KERNELS)
    return sorted(dict.fromkeys(arms), key=lambda arm: (order.index(engine_of(arm)), arm != engine_of(arm)))


def color(arms: list[str], field: str = "engine", legend: bool = True) -> alt.Color:
    """Colour encoding; points and lines with the same field share one legend."""
    scale = alt.Scale(domain=arms, range=[look.color for look in looks(arms).values()])
    return alt.Color(f"{field}:N", scale=scale, legend=alt.Legend(title=None, labelLimit=300) if legend else None)


def shape(arms: list[str], field: str = "engine", legend: bool = True) -> alt.Shape:
    scale = alt.Scale(domain=arms, range=[look.shape for look in looks(arms).values()])
    return alt.Shape(f"{field}:N", scale=scale, legend=alt.Legend(title=None, labelLimit=300) if legend else None)


def dash(arms: list[str], field: str = "engine", legend: bool = True) -> alt.StrokeDash:
    scale = alt.Scale(domain=arms, range=[list(look.dash) for look in looks(arms).values()])
    return alt.StrokeDash(f"{field}:N", scale=scale, legend=alt.Legend(title=None, labelLimit=300) if legend else None)


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` round values in [low, high] for a log axis, from the finest set that fits; at least one value."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for digits in (
        (1, 1.1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 5, 6, 7, 8, 9),
        (1, 1.5, 2, 3, 5, 7),
        (1, 2, 5),
        (1, 3),
        (1,),
    ):
        ticks = [value for d in decades for m in digits if low <= (value := float(f"{m}e{d}")) <= high]
        if len(ticks) <= most:
            break
    return ticks[:: math.ceil(len(ticks) / most)] or [low]


def config() -> dict[str, Any]:
    """Vega-Lite configuration that every figure gets. `aria` is off: the figure as a whole carries the description."""
    return {
        "font": FONT,
        "background": "transparent",
        "aria": False,
        "padding": 2,
        "view": {"stroke": None},
        "text": {"color": INK, "fontSize": 13},
        "axis": {
            "labelColor": MUTED,
            "labelFontSize": 13,
            "titleColor": MUTED,
            "titleFontSize": 13,
            "titleFontWeight": "normal",
            "titlePadding": 8,
            "gridColor": GRID,
            "domain": False,
            "ticks": False,
            "labelPadding": 6,
        },
        "axisY": {"labelColor": INK},
        "legend": {
            "orient": "top",
            "labelColor": INK,
            "labelFontSize": 14,
            "symbolSize": 80,
            "symbolStrokeWidth": 2,
            "offset": 10,
            "padding": 0,
        },
        "title": {"color": INK, "fontSize": 13},
        "header": {"labelColor": INK, "labelFontSize": 13, "labelFontWeight": "bold", "labelAnchor": "start"},
        "point": {"size": 60, "filled": True, "opacity": 1},
        "line": {"strokeWidth": 2},
        "rule": {"color": NEUTRAL},
    }
