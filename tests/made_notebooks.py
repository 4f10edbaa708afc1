"""Small notebooks, made as the tests need them: right in everything but what a test is about."""

from __future__ import annotations

from pathlib import Path

import nbformat

PARAMETERS = 'profile = "smoke"\nmodel = "nano"\ndtype = None\nonly = None\nblocks = None\nseed = 0\nmargin = 0.05'
CHECK = "from qwen3lab.report import parameters\np = parameters.check(globals(), parameters.Parameters)"
OPEN = """\
import pandas as pd
from qwen3lab.record import Round
from qwen3lab.report.places import data_root
rnd = Round.open("v01", p.profile, "Does it run?", p.model_dump(), root=data_root())
rnd.set(machine={"cpu": "made up"}, metrics={"wall_s": {"formula": "end − start", "unit": "s"}})
rnd.add_frame("trials", pd.DataFrame({"wall_s": [1.0, 2.0]}))"""
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
SEAL = 'rnd.seal(notebook="made.ipynb")'


def notebook(folder: Path, *cells: str, parameters: tuple[str, ...] = (PARAMETERS,), name: str = "made.ipynb") -> Path:
    """A notebook with the given code cells after its parameters cells (as a rule one)."""
    node = nbformat.v4.new_notebook(metadata={"kernelspec": KERNEL})
    for source in parameters:
        node.cells.append(nbformat.v4.new_code_cell(source, metadata={"tags": ["parameters"]}))
    node.cells += [nbformat.v4.new_code_cell(source) for source in cells]
    for i, cell in enumerate(node.cells):
        cell["id"] = f"cell-{i}"
    path = folder / name
    nbformat.write(node, path)
    return path
