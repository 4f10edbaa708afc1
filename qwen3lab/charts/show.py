"""A chart becomes a Figure: drawn twice (desk and phone width), described in words, with its numbers in a table.

A notebook output keeps the static SVG as HTML, which is what JupyterLab shows, and the figure itself as JSON
(FIGURE_MIME), from which a report draws it again. QWEN3LAB_CHARTS=interactive makes charts answer to the pointer: in
JupyterLab through altair's offline widget, in a report through one script for the whole page (see draw.py).
"""

from __future__ import annotations

import hashlib
import html
import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import altair
import pandas as pd

from qwen3lab.charts import theme
from qwen3lab.charts.draw import Spec, draw

FIGURE_MIME = "application/vnd.qwen3lab.figure+json"
MAX_TABLE_ROWS = 200
Mode = Literal["static", "interactive"]

# The figure's own layout; which drawing shows depends on the room it is given, in a page and in JupyterLab alike.
FIGURE_CSS = """
.q-figure{container-type:inline-size;margin:1.5rem 0;max-width:740px}
.q-figure figure{margin:.5rem 0}
.q-figure svg{display:block;width:100%;height:auto}
.q-figure .q-narrow{display:none}
.q-figure .q-title{font-weight:600;margin:0}
.q-figure .q-caption{margin:.25rem 0;font-size:.875em}
.q-figure details{font-size:.875em;overflow-x:auto}
.q-figure table{border-collapse:collapse;font-variant-numeric:tabular-nums}
.q-figure th,.q-figure td{padding:.15rem .75rem .15rem 0;text-align:left;white-space:nowrap}
.q-figure td.q-number,.q-figure th.q-number{text-align:right}
@container (max-width:559px){.q-figure .q-wide{display:none}.q-figure .q-narrow{display:block}}
""".strip()


@dataclass(frozen=True)
class Figure:
    """A chart that can be published: `wide` and `narrow` are Vega-Lite, `rows` the numbers behind it."""

    title: str
    alt: str
    caption: str
    columns: list[str]
    rows: list[list[Any]]
    missing: dict[str, int]
    wide: Spec
    narrow: Spec

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Figure:
        """A figure out of a notebook's output; a key too many or too few raises TypeError."""
        return cls(**raw)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def figure_id(self) -> str:
        """Fixed by the content, so that a page drawn twice has the same bytes."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return "q" + hashlib.sha256(text.encode()).hexdigest()[:10]

    def html(self, mode: Mode = "static") -> str:
        """The figure as HTML, every string escaped. In `interactive` mode the page's script finds the specs in it."""
        drawings = "".join(
            f'<div class="q-{name}">{draw(spec, f"{self.figure_id}-{name}")}</div>'
            for name, spec in (("wide", self.wide), ("narrow", self.narrow))
        )
        return (
            f'<div class="q-figure" id="{self.figure_id}"><p class="q-title">{html.escape(self.title)}</p>'
            f'<figure role="img" aria-label="{html.escape(self.alt)}">{drawings}</figure>'
            f'<p class="q-caption">{html.escape(self.full_caption)}</p>{self._table()}'
            f"{self._specs() if mode == 'interactive' else ''}</div>"
        )

    @property
    def full_caption(self) -> str:
        if not self.missing:
            return self.caption
        counts = ", ".join(f"{n} of {len(self.rows)} in {column}" for column, n in self.missing.items())
        return f"{self.caption} Missing: {counts}.".strip()

    def _table(self) -> str:
        numeric = [any(isinstance(row[i], int | float) for row in self.rows) for i in range(len(self.columns))]
        css = [' class="q-number"' if n else "" for n in numeric]
        head = "".join(
            f'<th scope="col"{c}>{html.escape(name)}</th>' for name, c in zip(self.columns, css, strict=True)
        )
        body = "".join(
            "<tr>" + "".join(f"<td{c}>{_cell(value)}</td>" for value, c in zip(row, css, strict=True)) + "</tr>"
            for row in self.rows[:MAX_TABLE_ROWS]
        )
        shown, total = min(len(self.rows), MAX_TABLE_ROWS), len(self.rows)
        label = f"{total} rows" if shown == total else f"first {shown} of {total} rows; the round's frames hold all"
        return (
            f"<details><summary>The numbers ({label})</summary>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></details>"
        )

    def _specs(self) -> str:
        specs = {
            name: {**spec, "config": theme.config()} for name, spec in (("wide", self.wide), ("narrow", self.narrow))
        }
        # "<" would let a string in the data close the script element.
        text = json.dumps(specs, sort_keys=True).replace("<", "\\u003c")
        return f'<script type="application/json" class="q-spec">{text}</script>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": f"{self.title}\n{self.alt}", FIGURE_MIME: self.to_dict()}
        if mode_from_env() == "interactive":
            return {**_widget(self), **bundle}
        return {**bundle, "text/html": f"<style>{FIGURE_CSS}</style>{self.html()}"}


def show(
    chart: altair.TopLevelMixin | Callable[[int], altair.TopLevelMixin],
    *,
    alt: str,
    title: str,
    table: pd.DataFrame,
    caption: str = "",
) -> Figure:
    """The Figure of `chart`; as the last line of a notebook cell it is displayed.

    chart    an altair chart, or a function of the width in px that makes one (where desk and phone differ in more
             than size). At most 5000 rows of data: aggregate first, a reader cannot see more
    alt      what a reader who cannot see it should know: what is drawn and what it shows, in a sentence or two
    title    what it is about
    table    the numbers drawn; a value that is not finite is counted as missing, in the caption
    """
    for name, text in (("alt", alt), ("title", title)):
        if not text.strip():
            raise ValueError(f"show: {name} is empty; a figure without it cannot be published")
    rows = [[_plain(value) for value in row] for row in table.itertuples(index=False, name=None)]
    columns = [str(c) for c in table.columns]
    missing = {c: sum(row[i] is None for row in rows) for i, c in enumerate(columns)}
    wide, narrow = (_spec(chart, width, title) for width in (theme.WIDE, theme.NARROW))
    return Figure(title, alt, caption, columns, rows, {c: n for c, n in missing.items() if n}, wide, narrow)


def _spec(chart: Any, width: int, title: str) -> Spec:
    drawn = chart(width) if callable(chart) and not isinstance(chart, altair.TopLevelMixin) else chart
    try:
        spec: Spec = drawn.to_dict()
    except altair.MaxRowsError as error:
        raise ValueError(f"{title}: more than 5000 rows of data; aggregate before drawing") from error
    spec.pop("config", None)  # altair's own defaults; the theme is applied when the figure is drawn
    if not {"facet", "concat", "hconcat", "vconcat", "repeat"} & spec.keys():
        spec.update(width=width, autosize={"type": "fit-x", "contains": "padding"})
    return spec


def mode_from_env() -> Mode:
    value = os.environ.get("QWEN3LAB_CHARTS", "static")
    if value not in ("static", "interactive"):
        raise ValueError(f"QWEN3LAB_CHARTS={value!r}, allowed: static, interactive")
    return "static" if value == "static" else "interactive"


def _widget(figure: Figure) -> dict[str, Any]:
    """JupyterLab's live chart between the figure's title and its table; works with no network."""
    import ipywidgets  # type: ignore[import-untyped]

    altair.JupyterChart.enable_offline()
    chart = altair.JupyterChart(altair.Chart.from_dict({**figure.wide, "config": theme.config()}))
    title = ipywidgets.HTML(f"<style>{FIGURE_CSS}</style><b>{html.escape(figure.title)}</b>")
    words = ipywidgets.HTML(f'<div class="q-figure">{html.escape(figure.full_caption)}{figure._table()}</div>')
    bundle: dict[str, Any] = ipywidgets.VBox([title, chart, words])._repr_mimebundle_()
    return bundle


def _plain(value: Any) -> Any:
    """A table's cell as JSON: None for what is missing or not finite."""
    if hasattr(value, "item"):
        value = value.item()
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value if isinstance(value, bool | int | float | str) else str(value)


def _cell(value: Any) -> str:
    if value is None:
        return "missing"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return html.escape(str(value))
