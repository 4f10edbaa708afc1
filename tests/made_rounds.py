"""Sealed rounds of made-up frames, as a real comparison would leave them: what the report tests publish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from made_frames import comparison
from made_notebooks import KERNEL

from qwen3lab import charts
from qwen3lab.record import Round, SealedRound

METRICS = {
    "wall_s": {"formula": "last token of the run − start of the run", "unit": "s", "aliases": {"vllm": "elapsed_time"}}
}
MACHINE = {"cpu": "Imagined CPU <i>2000</i>", "usable_cores": 2, "memory_bytes": 8 << 30, "gpus": []}
ARMS = [
    {"label": "A", "name": "transformers", "version": "5.24.0", "dtype": "float32", "device": "cpu", "threads": 2},
    {"label": "B", "name": "qwen3lab", "version": "0.1.0", "dtype": "float32", "device": "cpu", "threads": 2},
]
PROSE = "# v01 · Where do we start?\n\nWe expect the thinner loop to win.\n\n## What was measured\n"


def seal(
    root: Path,
    profile: str = "smoke",
    blocks: int = 3,
    figures: bool = True,
    notebook: bool = True,
    variant: str = "v01",
) -> SealedRound:
    """A round of `blocks` blocks, with an executed notebook that shows `figures`, or with none."""
    trials, samples, verdicts = comparison(blocks)
    rnd = Round.open(variant, profile, "Where do we start?", {"profile": profile, "blocks": blocks}, root=root)
    rnd.set(machine=MACHINE, metrics=METRICS, arms=ARMS, workloads=dict.fromkeys(trials["workload"], "ab" * 32))
    rnd.add_frame("trials", trials)
    rnd.add_frame("samples", samples)
    rnd.add_verdicts(verdicts)
    rnd.add_note("Made up & <b>escaped</b>.")
    if not notebook:
        sealed = rnd.seal()
    else:
        drawn = [charts.ratio_forest(verdicts), charts.throughput(trials), charts.itl_timeline(samples)]
        source, executed = root.parent / "v01_made.ipynb", root.parent / "executed.ipynb"
        nbformat.write(_notebook([]), source)
        nbformat.write(_notebook(drawn if figures else []), executed)
        sealed = rnd.seal(notebook=source, executed=executed)
    assert isinstance(sealed, SealedRound)
    return sealed


def _notebook(figures: list[charts.Figure]) -> Any:
    code = nbformat.v4.new_code_cell("charts.ratio_forest(verdicts)  # who is ahead", id="code")
    code.outputs = [nbformat.v4.new_output("display_data", data=figure._repr_mimebundle_()) for figure in figures]
    if figures:
        code.outputs.append(nbformat.v4.new_output("stream", name="stderr", text="progress 100%"))
    return nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_markdown_cell(PROSE, id="prose"), code], metadata={"kernelspec": KERNEL}
    )
