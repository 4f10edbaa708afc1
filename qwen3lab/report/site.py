"""reports/, from sealed rounds alone: an index and a page for the newest round of each question and profile.

A round that does not verify is refused, and with it the whole site: half a site would pass for a whole one. The same
rounds give the same bytes. Pages fetch nothing and, unless charts are interactive, run nothing: their policy says so.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from qwen3lab import charts, variants
from qwen3lab.charts import draw, theme
from qwen3lab.charts.show import FIGURE_CSS, Mode, mode_from_env
from qwen3lab.record import SealedRound, rounds
from qwen3lab.report import places
from qwen3lab.report.article import TEMPLATES
from qwen3lab.report.page import Page, context

GENERATOR = '<meta name="generator" content="qwen3lab">'


def build(data: str | Path | None = None, out: str | Path | None = None, mode: Mode | None = None) -> Path:
    """Draw the site of the rounds under `data` into the folder `out`; the path of its index.

    data  None: QWEN3LAB_DATA, else the project's own
    out   None: reports/ beside `data`
    mode  "static" or "interactive"; None:  QWEN3LAB_CHARTS
    Raises UnverifiedRound where a round, or the index of rounds, is not as it was sealed.
    """
    root = Path(data) if data is not None else places.data_root()
    folder = Path(out) if out is not None else places.reports_of(root)
    mode = mode or mode_from_env()
    sealed = list(rounds(root))
    pages = newest_pages(sealed)
    environment = _environment(mode)
    files = {"index.html": environment.get_template("index.html.j2").render(index_context(sealed, pages, mode))}
    for page in pages:
        siblings = [other for other in pages if other.variant == page.variant and other != page]
        files[page.file] = environment.get_template("round.html.j2").render(context(page, siblings, mode))
    _write(folder, files)
    return folder / "index.html"


def newest_pages(sealed: Sequence[SealedRound]) -> list[Page]:
    """A page for the newest round of every variant and profile; the newest profile's has the variant's own name."""
    newest: dict[tuple[str, str], SealedRound] = {}
    for round_ in sealed:  # oldest first
        newest.pop((round_.record.variant, round_.record.profile), None)
        newest[round_.record.variant, round_.record.profile] = round_
    pages: list[Page] = []
    for (variant, profile), round_ in reversed(newest.items()):
        first = all(page.variant != variant for page in pages)
        pages.append(Page(round_, f"{variant}.html" if first else f"{variant}-{profile}.html"))
    return pages


def index_context(sealed: Sequence[SealedRound], pages: Sequence[Page], mode: Mode) -> dict[str, Any]:
    """What index.html.j2 needs."""
    newest = next((page for page in pages if page.compares_engines), None)
    files = {page.round.record.round: page.file for page in pages}
    return {
        "newest": newest,
        "forest": charts.ratio_forest(newest.comparisons[0]).html(mode) if newest else "",
        "matrix": matrix(sorted(pages, key=lambda page: page.file)),
        "ladder": [
            {
                "id": rung.id,
                "question": rung.question,
                "pages": [page for page in pages if page.variant == rung.id],
            }
            for rung in variants.LADDER
        ],
        "rounds": [
            {
                "id": r.record.round,
                "file": files.get(r.record.round),
                "variant": r.record.variant,
                "profile": r.record.profile,
                "source": (r.record.git.commit or "no commit")[:10] + ("+" if r.record.git.dirty else ""),
                "sha256": r.sha256,
            }
            for r in reversed(sealed)
        ],
    }


def matrix(pages: Sequence[Page]) -> dict[str, Any]:
    """Workloads by rounds: each round's verdict on its first metric."""
    compared = [page for page in pages if page.compares_engines]
    columns = [
        {"file": p.file, "variant": p.variant, "profile": p.profile, "rival": p.verdicts[0]["arm_a"]} for p in compared
    ]
    found = [{v["workload"]: v for v in page.comparisons[0]} for page in compared]
    workloads = sorted({workload for verdicts in found for workload in verdicts})
    return {"columns": columns, "rows": [(w, [verdicts.get(w) for verdicts in found]) for w in workloads]}


def _environment(mode: Mode) -> jinja2.Environment:
    script = draw.script() if mode == "interactive" else ""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.globals.update(
        policy=policy(script),
        script=script,
        figure_css=FIGURE_CSS,
        engines=theme.ENGINES,
        night_colors=theme.night_colors(),
    )
    return environment


def policy(script: str) -> str:
    """The page's Content-Security-Policy: nothing is fetched; of scripts only `script`, known by its hash, may run.

    Vega compiles its expressions, hence 'unsafe-eval' where there is a script at all.
    """
    rules = [
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        rules.append(f"script-src 'sha256-{digest}' 'unsafe-eval'")
    return "; ".join(rules)


def _write(folder: Path, files: dict[str, str]) -> None:
    """All pages, each whole or not at all; pages of ours that are no longer drawn are taken away."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        part = folder / f".{name}.part"
        part.write_text(text, encoding="utf-8")
        os.replace(part, folder / name)
    for path in folder.glob("*.html"):
        if path.name not in files and GENERATOR in path.read_text(encoding="utf-8", errors="replace")[:2000]:
            path.unlink()
