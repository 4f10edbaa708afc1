"""One sealed round as a page: verdict first, then the notebook or charts, then how it was measured, then the hashes.

A round sealed from inside its own kernel has no executed notebook; its charts are drawn from its frames.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qwen3lab import charts
from qwen3lab.charts.show import Figure, Mode
from qwen3lab.record import SealedRound
from qwen3lab.report.article import article
from qwen3lab.report.words import headline

Facts = list[tuple[str, str]]
GIB = 1 << 30
COMPARISON = ("arm_a", "arm_b", "metric")


@dataclass(frozen=True)
class Page:
    """A round that has a page: `file` under reports/."""

    round: SealedRound
    file: str

    @property
    def variant(self) -> str:
        return self.round.record.variant

    @property
    def profile(self) -> str:
        return self.round.record.profile

    @property
    def date(self) -> str:
        return self.round.record.started[:10]

    @property
    def compares_engines(self) -> bool:
        """Whether its verdicts are about workloads; those of kernels are about sizes of an operation."""
        return bool(self.round.verdicts and self.round.record.workloads)

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        """As mappings, each with `ahead`: the engine that the verdict says is faster, or None."""
        rows = [verdict.model_dump() for verdict in self.round.verdicts]
        return [{**v, "ahead": {"faster": v["arm_b"], "slower": v["arm_a"]}.get(v["word"])} for v in rows]

    @property
    def comparisons(self) -> list[list[dict[str, Any]]]:
        """The verdicts by metric and pair of arms; the first group is what the round is about."""
        groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for verdict in self.verdicts:
            groups.setdefault(tuple(verdict[key] for key in COMPARISON), []).append(verdict)
        return list(groups.values())

    @property
    def headline(self) -> str:
        return headline(self.comparisons[0] if self.comparisons else [])


def context(page: Page, siblings: Sequence[Page], mode: Mode) -> dict[str, Any]:
    """What round.html.j2 needs."""
    record = page.round.record
    return {
        "round": record,
        "sha256": page.round.sha256,
        "sums": page.round.sums,
        "headline": page.headline,
        "groups": [
            {
                "title": title(group[0], page.comparisons[0][0]),
                "caption": _caption(record.metrics[group[0]["metric"]], group),
                "verdicts": group,
            }
            for group in page.comparisons
        ],
        "siblings": siblings,
        "article": body(page.round, mode),
        "machine": machine_facts(page.round),
        "arms": [_arm(arm) for arm in record.arms],
        "parameters": flat(record.parameters),
        "libraries": sorted(record.libraries.items()),
        "source": source_facts(page.round),
    }


def title(verdict: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    """What sets a group of verdicts apart from the first one: another metric, or another pair of arms."""
    if (verdict["arm_a"], verdict["arm_b"]) == (first["arm_a"], first["arm_b"]):
        return f"The same by {verdict['metric']}"
    return f"{verdict['arm_b']} against {verdict['arm_a']}, by {verdict['metric']}"


def body(sealed: SealedRound, mode: Mode) -> str:
    """The executed notebook, or the charts of the frames with the reason why there is none."""
    notebook = sealed.executed_notebook
    if notebook is not None:
        return article(notebook, mode)
    figures = "".join(figure.html(mode) for figure in drawn_from_frames(sealed))
    why = html.escape(str(sealed.record.notebook.why_absent))
    return f"<p>No executed notebook: {why}. Drawn from its frames:</p>{figures}"


def drawn_from_frames(sealed: SealedRound) -> list[Figure]:
    """The charts that a comparison's frames and verdicts are enough for."""
    record = sealed.record
    figures = [charts.ratio_forest(group, group[0]["metric"]) for group in Page(sealed, "").comparisons]
    if _has(sealed, "trials", "workload", "engine", "warmup", "health", "output_tok_per_s", "wall_s", "block_id"):
        trials = sealed.frame("trials")
        figures += [charts.throughput(trials), charts.drift(trials)]
    if _has(sealed, "samples", "workload", "engine", "warmup", "token_times_s", "arrival_s", "ttft_s"):
        samples = sealed.frame("samples")
        if "w6_decode_stall" in set(samples["workload"]) and "w6_decode_stall" in record.workloads:
            figures += [charts.itl_timeline(samples), charts.itl_ecdf(samples)]
    return figures


def machine_facts(sealed: SealedRound) -> Facts:
    """The machine in words a reader can use; what it does not say is left out. Then how long, and how fit it was."""
    record = sealed.record
    facts = flat(record.machine)
    facts.append(("measured", f"{record.started} to {record.finished}, {record.elapsed_s:.0f} s"))
    if _has(sealed, "trials", "health", "warmup"):
        trials = sealed.frame("trials")
        health = trials.loc[~trials["warmup"].astype(bool), "health"]
        flagged = int((health == "flag").sum())
        rejected = int((health == "reject").sum())
        facts.append(("platform", f"{len(health)} trials, {flagged} flagged, {rejected} rejected by the health gate"))
    return facts


def source_facts(sealed: SealedRound) -> Facts:
    git, notebook = sealed.record.git, sealed.record.notebook
    commit = git.commit or f"no commit: {git.why_absent}"
    facts = [("commit", f"{commit}{', with changes' if git.dirty else ''}")]
    if notebook.source:
        facts += [("notebook", notebook.source), ("sha256 of its source, stripped", str(notebook.source_sha256))]
    if notebook.why_absent:
        facts.append(("no executed notebook", notebook.why_absent))
    return facts


def flat(value: Mapping[str, Any], prefix: str = "") -> Facts:
    """Nested facts as (name, words) pairs: bytes in GiB, lists in a line; empty ones are left out."""
    facts: Facts = []
    for key, item in value.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(item, Mapping):
            facts += flat(item, f"{prefix}{key} · ")
        elif isinstance(item, list) and any(isinstance(entry, Mapping) for entry in item):
            for i, entry in enumerate(item):
                facts += flat(entry, f"{prefix}{key} {i} · ")
        elif item is not None and item != [] and item != "":
            facts.append((name.removesuffix(" bytes"), _words(key, item)))
    return facts


def _words(key: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if key.endswith("_bytes") and isinstance(value, int | float):
        return f"{value / GIB:.1f} GiB"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _caption(metric: Any, verdicts: Sequence[Mapping[str, Any]]) -> str:
    arm_a, arm_b, margin = (verdicts[0][key] for key in ("arm_a", "arm_b", "margin"))
    return (
        f"{verdicts[0]['metric']} = {metric.formula} ({metric.unit}). Ratio = that of {arm_b} over that of {arm_a}; "
        f"within ±{margin * 100:g} % they count as the same."
    )


def _arm(arm: Mapping[str, Any]) -> dict[str, Any]:
    facts = {key: value for key, value in arm.items() if key not in ("name", "label")}
    shown = [str(facts[key]) for key in ("version", "dtype", "device", "attention") if isinstance(facts.get(key), str)]
    return {"title": arm.get("name", "arm"), "summary": ", ".join(shown), "facts": flat(facts)}


def _has(sealed: SealedRound, frame: str, *columns: str) -> bool:
    known = sealed.record.frames.get(frame)
    return known is not None and known.rows > 0 and set(columns) <= set(known.columns)
