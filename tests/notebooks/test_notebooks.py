"""Every notebook keeps the house's form; the whole of it runs headless, strictly, and bare papermill refuses a typo."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest

from qwen3lab import record, variants
from qwen3lab.report import places, runner, site
from qwen3lab.report.parameters import Parameters

NOTEBOOKS = sorted(places.NOTEBOOKS.glob("*.ipynb"))
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
CHECKED, KEPT = "nbval-check-output", "keep_output"


def code_cells(path: Path) -> list[Any]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def tags(cell: Any) -> list[str]:
    return list(cell.metadata.get("tags", []))


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@each
def test_it_belongs_to_a_rung_and_runs_on_any_python3(path: Path) -> None:
    node = nbformat.read(path, as_version=4)
    rung = variants.get(path.stem.split("_")[0])
    assert node.cells[0].source.startswith(f"# {rung.title}\n")
    assert node.metadata.kernelspec.name == "python3"
    assert len(node.cells) <= 25


@each
def test_it_is_stripped_but_for_checked_outputs(path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "nbstripout", "--verify", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    for cell in code_cells(path):
        assert cell.outputs == [] or CHECKED in tags(cell), "an output is stored only to be checked"


@each
def test_a_checked_cell_has_a_stored_output_to_be_checked_against(path: Path) -> None:
    checked = [cell for cell in code_cells(path) if CHECKED in tags(cell)]
    assert checked, "nbval --nbval-lax compares nothing unless a cell asks for it"
    for cell in checked:
        assert KEPT in tags(cell), "or the next stripping takes it"
        assert cell.outputs, f"nothing is stored for:\n{cell.source}"
    assert not any("NBVAL_" in cell.source for cell in code_cells(path)), "tags say it; a comment is read in the report"


@each
def test_its_one_parameters_cell_holds_literals_and_the_next_one_checks_them(path: Path) -> None:
    cells = code_cells(path)
    assert [i for i, cell in enumerate(cells) if "parameters" in tags(cell)] == [0]
    values = {}
    for statement in ast.parse(cells[0].source).body:
        assert isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name), ast.unparse(statement)
        values[statement.targets[0].id] = ast.literal_eval(statement.value)
    assert list(papermill.inspect_notebook(str(path))) == list(values), "papermill sees each of them"
    assert "parameters.check(globals()," in cells[1].source
    assert Parameters.model_validate({name: values[name] for name in Parameters.model_fields}).profile == "smoke"


@each
def test_its_code_lives_in_the_package(path: Path) -> None:
    for cell in code_cells(path):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 5, f"{node.name} belongs in a file"
            assert not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("exit", "quit", "sys.exit")
    assert "rnd.seal(notebook=" in code_cells(path)[-1].source


@pytest.mark.slow
def test_bare_papermill_refuses_a_typo(tmp_path: Path) -> None:
    out = tmp_path / "out.ipynb"
    command = [
        sys.executable,
        "-m",
        "papermill",
        str(NOTEBOOKS[0]),
        str(out),
        "-p",
        "blokcs",
        "3",
        "--log-level",
        "ERROR",
    ]
    done = subprocess.run([*command, "--no-progress-bar"], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "unknown parameter 'blokcs'; did you mean 'blocks'?" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_v01_measures_seals_and_is_published(tmp_path: Path) -> None:
    given = {"only": "w1_single_decode,w6_decode_stall", "blocks": 2, "rival": "transformers"}
    sealed = runner.run("v01", profile="smoke", parameters=given, out_root=tmp_path / "data")
    assert record.verify_all(tmp_path / "data") == []
    assert [v.workload for v in sealed.verdicts if v.metric == "wall_s"] == [
        "w1_single_decode", "w6_decode_stall", "w1_single_decode",  # the last is the control
    ]  # fmt: skip
    assert all(v.tokens == "identical" for v in sealed.verdicts), "in float32 greedy tokens agree"
    trials = sealed.frame("trials")
    assert set(trials["engine"]) == {"transformers", "qwen3lab"}
    assert set(sealed.outputs()) == {"transformers", "qwen3lab"}
    site.build(tmp_path / "data", tmp_path / "reports")
    page = (tmp_path / "reports/v01.html").read_text(encoding="utf-8")
    assert page.count('<figure role="img"') == 5
    assert str(tmp_path) not in page, "no path of this machine in a published page"
