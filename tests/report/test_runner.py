"""The strict runner, with a kernel of its own for every case: what papermill lets pass is an error here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from made_notebooks import CHECK, KERNEL, OPEN, PARAMETERS, SEAL, notebook

from qwen3lab import record
from qwen3lab.report import runner
from qwen3lab.report.runner import NotebookFailed

GOOD = (CHECK, OPEN, SEAL)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


def unsealed(root: Path) -> bool:
    """Nothing in the index, and nothing that verification would object to."""
    return not root.is_dir() or (not list(record.rounds(root)) and not record.verify_all(root))


def test_a_round_is_sealed_with_the_executed_notebook_in_it(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Kernels of the same name, in the user's home and elsewhere, are not taken for this interpreter's own.
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "extra"))
    for folder in (tmp_path / "home/.local/share/jupyter/kernels/python3", tmp_path / "extra/kernels/python3"):
        folder.mkdir(parents=True)
        (folder / "kernel.json").write_text(json.dumps({**KERNEL, "argv": ["/bin/false"]}))
    bar = "import sys\nfrom tqdm.auto import tqdm\nfor i in tqdm(range(3), desc='a bar'): pass"
    path = notebook(tmp_path, *GOOD, bar, "print(sys.prefix)")
    sealed = runner.run(path, profile="full", parameters={"margin": 1e-7, "model": "0123", "blocks": 7}, out_root=root)
    assert "a bar: 100%" in capfd.readouterr().err, "the notebook's own progress reaches the terminal"

    given = {"profile": "full", "model": "0123", "blocks": 7, "margin": 1e-7}
    assert sealed.record.parameters == {**given, "dtype": None, "only": None, "seed": 0}
    assert sealed.record.notebook.source == "made.ipynb"
    executed = sealed.executed_notebook
    assert executed.cells[-1].outputs[0].text.strip() == sys.prefix
    assert str(tmp_path) not in json.dumps(executed.metadata), "no path of this machine in a published notebook"
    assert [r.sha256 for r in record.rounds(root)] == [sealed.sha256]
    assert not record.verify_all(root)


@pytest.mark.parametrize(
    ("given", "message"),
    [({"blokcs": 3}, r"unknown parameter 'blokcs'; did you mean 'blocks'"), ({"p": 1}, "unknown parameter 'p'")],
)
def test_an_unknown_parameter_is_refused_before_anything_runs(
    tmp_path: Path, root: Path, given: dict[str, int], message: str
) -> None:
    with pytest.raises(NotebookFailed, match=message):
        runner.run(notebook(tmp_path, *GOOD), parameters=given, out_root=root)
    assert not root.exists()


@pytest.mark.parametrize("cells", [(), (PARAMETERS, PARAMETERS)], ids=["none", "two"])
def test_one_parameters_cell_it_must_be(tmp_path: Path, root: Path, cells: tuple[str, ...]) -> None:
    with pytest.raises(NotebookFailed, match="exactly one must be"):
        runner.run(notebook(tmp_path, *GOOD, parameters=cells), out_root=root)


def test_rungs_and_paths_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no rung 'v1'; did you mean"):
        runner.run("v1")
    with pytest.raises(NotebookFailed, match="no such notebook"):
        runner.run(tmp_path / "absent.ipynb")
    (tmp_path / "broken.ipynb").write_text("{")
    with pytest.raises(NotebookFailed, match="not a notebook that papermill can run"):
        runner.run(tmp_path / "broken.ipynb")


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("1 / 0", "made.ipynb, cell 3: ZeroDivisionError: division by zero"),
        ("import os\nos._exit(1)", "cell 3: the kernel died"),
        ("import time\ntime.sleep(60)", "cell 3: .*it had not ended after 2 s"),
    ],
    ids=["exception", "death", "timeout"],
)
def test_a_cell_that_does_not_end_well(tmp_path: Path, root: Path, cell: str, message: str) -> None:
    timeout_s = 2 if "sleep" in cell else runner.CELL_TIMEOUT_S
    with pytest.raises(NotebookFailed, match=message) as caught:
        runner.run(notebook(tmp_path, "1 + 1", cell), out_root=root, cell_timeout_s=timeout_s)
    assert unsealed(root)
    kept = nbformat.read(str(caught.value).split("What ran of it: ")[1], as_version=4)
    assert cell in [c.source for c in kept.cells], "the executed notebook is kept for reading"


def test_an_early_exit_seals_nothing_though_papermill_takes_it_for_success(tmp_path: Path, root: Path) -> None:
    with pytest.raises(NotebookFailed, match="cell 5: SystemExit"):
        runner.run(notebook(tmp_path, *GOOD, "raise SystemExit(0)", "1 + 1"), out_root=root)
    assert unsealed(root)


def test_bare_papermill_lets_the_round_seal_itself(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QWEN3LAB_DATA", str(root))
    path, out = notebook(tmp_path, *GOOD), tmp_path / "out.ipynb"
    subprocess.run(
        [sys.executable, "-m", "papermill", str(path), str(out), "--cwd", str(tmp_path), "--no-progress-bar"],
        check=True,
    )
    (sealed,) = record.rounds(root)
    assert sealed.executed_notebook is None
    assert "from inside its own kernel" in str(sealed.record.notebook.why_absent)


@pytest.mark.parametrize(("cells", "count"), [((CHECK,), "no"), ((*GOOD, OPEN, SEAL), "2")], ids=["none", "two"])
def test_a_notebook_seals_exactly_one_round(tmp_path: Path, root: Path, cells: tuple[str, ...], count: str) -> None:
    with pytest.raises(NotebookFailed, match=f"sealed {count} rounds"):
        runner.run(notebook(tmp_path, *cells), out_root=root)
    assert unsealed(root)


def test_a_cell_without_a_status_did_not_run(tmp_path: Path) -> None:
    path = notebook(tmp_path, *GOOD)
    with pytest.raises(NotebookFailed, match=r"cell 1: did not run \(no status\)"):
        runner.check_executed(path, path)
