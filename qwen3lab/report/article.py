"""An executed notebook becomes a fragment of a page: prose, results and figures in order, the code folded away.

What a notebook holds is not trusted, though it verifies: a round can come from anybody. Its prose and tables pass
through an allow-list without scripts, styles, images and addresses; its figures are drawn anew from their data.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import bleach  # type: ignore[import-untyped]  # nbconvert's own dependency
from nbconvert import HTMLExporter
from traitlets.config import Config

from qwen3lab.charts.show import FIGURE_MIME, Figure, Mode

TEMPLATES = Path(__file__).parent / "templates"
TAGS = {
    "a", "abbr", "b", "blockquote", "br", "caption", "code", "dd", "del", "div", "dl", "dt", "em", "h1", "h2", "h3",
    "h4", "hr", "i", "kbd", "li", "ol", "p", "pre", "small", "span", "strong", "sub", "sup", "table", "tbody", "td",
    "th", "thead", "tr", "ul",
}  # fmt: skip
CELL_ATTRIBUTES = ["scope", "colspan", "rowspan"]
LINK = re.compile(r"((v[0-9]{2}(-[a-z0-9_-]+)?|index)\.html)?(#[\w-]+)?")  # the site's own pages
PRIORITY = [FIGURE_MIME, "text/html", "text/markdown", "image/png", "text/plain"]
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"


def article(notebook: Any, mode: Mode = "static") -> str:
    """The notebook (an nbformat NotebookNode) as HTML. Its first heading is left out: the page has it as its title."""
    figures: dict[str, str] = {}

    def figure(raw: dict[str, Any]) -> str:
        drawn = Figure.from_dict(raw)
        figures[drawn.figure_id] = drawn.html(mode)
        return f'<div id="{drawn.figure_id}"></div>'  # nbconvert's own parser is no parser of SVG

    exporter = HTMLExporter(
        template_name="article",
        extra_template_basedirs=[str(TEMPLATES)],
        filters={"figure": figure, "harmless": harmless},
        config=Config({"NbConvertBase": {"display_data_priority": PRIORITY}}),
        exclude_anchor_links=True,
    )
    exporter.environment.globals["figure_mime"] = FIGURE_MIME
    body: str = exporter.from_notebook_node(_readable(notebook))[0]
    for figure_id, drawing in figures.items():
        body = body.replace(f'<div id="{figure_id}"></div>', drawing)
    return body


def harmless(html: str) -> str:
    """Structure and words of `html`; no script, style or image, and links within the site only."""
    html = re.sub(r"(?is)<(script|style)\b.*?(</\1\s*>|\Z)", "", html)
    # "http" lets relative addresses pass; _may then takes those of the site's own pages only.
    return str(bleach.clean(html, tags=TAGS, attributes=_may, protocols={"http"}, strip=True, strip_comments=True))


def _may(tag: str, name: str, value: str) -> bool:
    if tag == "a":
        return name == "href" and LINK.fullmatch(value) is not None
    return name == "title" or (tag in ("th", "td") and name in CELL_ATTRIBUTES)


def _shown(output: Any) -> bool:
    """Text, errors, and data of a kind that the page has a form for."""
    data = output.get("data")
    return data is None or (WIDGET_MIME not in data and not data.keys().isdisjoint(PRIORITY))


def _readable(notebook: Any) -> Any:
    """A copy without the title's line, papermill's cell (its values are shown) and a progress widget's line of text."""
    notebook = copy.deepcopy(notebook)
    if notebook.cells and notebook.cells[0].cell_type == "markdown":
        notebook.cells[0].source = re.sub(r"\A# .*\n*", "", notebook.cells[0].source)
    notebook.cells = [c for c in notebook.cells if "injected-parameters" not in c.metadata.get("tags", [])]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if _shown(output)]
    return notebook
