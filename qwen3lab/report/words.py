"""Verdicts in words, computed: the one sentence that a page, a notebook and the command line begin with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

WORDS = ("faster", "same", "slower", "undecided")
TOKENS = {"identical": "identical", "near-tie": "near ties", "real": "really different", "unchecked": "not compared"}
RESULTS = {"within-rounding": "within rounding of fp64"}


def headline(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """What the first metric of the first pair of arms says over its workloads, and what the tokens do."""
    if not verdicts:
        return "Nothing was compared in this round."
    arm_a, arm_b, metric = (verdicts[0][key] for key in ("arm_a", "arm_b", "metric"))
    mine = [v for v in verdicts if (v["arm_a"], v["arm_b"], v["metric"]) == (arm_a, arm_b, metric)]
    tensors = all(v["tokens"] in RESULTS for v in mine)
    noun, what = ("kind", "results") if tensors else ("workload", "tokens")
    said = _counted(
        [v["word"] for v in mine], {word: word for word in WORDS}, f"of {len(mine)} {noun}{'s'[: len(mine) != 1]}"
    )
    tokens = _counted([v["tokens"] for v in mine], TOKENS | RESULTS, "")
    return f"{arm_b} against {arm_a}: {said}. Their {what}: {tokens}."


def said(verdict: Mapping[str, Any]) -> str:
    """A verdict in a cell: '0.74 faster'."""
    ratio = verdict["ratio"]
    return f"{'no ratio' if ratio is None else format(ratio, '.2f')} {verdict['word']}"


def predictions(predicted: Mapping[str, str], verdicts: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Each workload's predicted word beside the one found: held, failed, or open where nothing was decided."""
    found = {v["workload"]: v["word"] for v in reversed(verdicts)}  # the first metric's verdict is the one that counts
    rows = []
    for workload, word in predicted.items():
        got = found.get(workload, "not measured")
        outcome = "held" if got == word else "open" if got in ("undecided", "not measured") else "failed"
        rows.append({"workload": workload, "predicted": word, "found": got, "outcome": outcome})
    return rows


def _counted(values: Sequence[str], names: Mapping[str, str], total: str) -> str:
    """'faster in 6 of 8 workloads, slower in 2'; the total is said once."""
    counts = Counter(values)
    parts = [f"{name} in {counts[value]}" for value, name in names.items() if counts[value]]
    parts[0] = f"{parts[0]} {total}".rstrip()
    return ", ".join(parts)
