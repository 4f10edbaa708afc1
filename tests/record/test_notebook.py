"""The notebook in the round: its source by hash, its executed copy from a runner, checked to belong together."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import papermill
import pytest

from qwen3lab.record import SealedRound, complete, notebook, rounds, verify_all

CODE = """
import pandas as pd
from qwen3lab.record import Round
with Round.open("v01", "smoke", "Does the notebook come along?", {"blocks": blocks}, root=root) as rnd:
    rnd.set(machine={"cpu": "some"})
    rnd.add_frame("samples", pd.DataFrame({"x": [1.0]}))
    sealed = rnd.seal()
print(sealed)
"""


def write(path: Path, *cells, **metadata) -> Path:
    node = nbformat.v4.new_notebook(cells=list(cells), metadata=metadata)
    path.write_text(nbformat.writes(node))
    return path


def source(path: Path, code: str = CODE) -> Path:
    parameters = nbformat.v4.new_code_cell("blocks = 1\nroot = 'data'", metadata={"tags": ["parameters"]})
    cells = nbformat.v4.new_markdown_cell("# A question"), parameters, nbformat.v4.new_code_cell(code)
    return write(path, *cells, kernelspec={"name": "python3", "display_name": "Python 3", "language": "python"})


def test_a_runner_seals_with_the_executed_notebook(tmp_path, data, monkeypatch):
    """A real papermill run in a real kernel: the cell leaves a measured round and a mark, the runner completes it."""
    asked, ran, mark = source(tmp_path / "v01_start.ipynb"), tmp_path / "out.ipynb", tmp_path / "mark"
    monkeypatch.setenv("QWEN3LAB_ROUND_SEALED_BY", "runner")
    monkeypatch.setenv("QWEN3LAB_ROUND_MARK", str(mark))
    monkeypatch.setenv("PYTHONPATH", str(Path(notebook.__file__).parents[2]))
    papermill.execute_notebook(asked, ran, {"blocks": 3, "root": str(data)}, progress_bar=False)
    (folder,) = mark.read_text().splitlines()
    assert folder.endswith(".open")
    assert list(rounds(data)) == []
    with pytest.raises(ValueError, match="run the notebook again"):
        complete(folder, notebook=source(tmp_path / "other.ipynb", "print()"), executed=ran)
    sealed = complete(folder, notebook=asked, executed=ran)
    assert sealed.record.parameters == {"blocks": 3}
    assert sealed.record.notebook.source == "v01_start.ipynb"
    assert sealed.record.notebook.source_sha256 == notebook.source_sha256(asked)
    printed = sealed.executed_notebook.cells[-1].outputs[0].text
    assert "measured" in printed
    assert (sealed.path / "notebook.ipynb").read_bytes() == ran.read_bytes()
    assert verify_all(data) == []
    with pytest.raises(ValueError, match="not the folder of an open round"):
        complete(folder, notebook=asked, executed=ran)


def test_a_round_that_seals_itself_says_why_it_has_no_executed_notebook(tmp_path, data, opening, filling):
    asked = source(tmp_path / "v01_start.ipynb")
    sealed = filling(opening(data)).seal(notebook=asked)
    assert sealed.record.notebook.source_sha256 == notebook.source_sha256(asked)
    assert "still running" in sealed.record.notebook.why_absent
    assert sealed.executed_notebook is None


def test_complete_may_be_tried_again(tmp_path, data, opening, filling, monkeypatch):
    monkeypatch.setenv("QWEN3LAB_ROUND_SEALED_BY", "runner")
    monkeypatch.setenv("QWEN3LAB_ROUND_MARK", str(tmp_path / "mark"))
    rnd = filling(opening(data)).seal()
    folder = rnd.folder
    for late in (rnd.seal, lambda: rnd.add_note("late")):
        with pytest.raises(ValueError, match="is measured: nothing more goes into it"):
            late()
    (folder / "stray").write_text("?")
    with pytest.raises(ValueError, match=r"\['stray'\] added"):
        complete(folder)
    (folder / "stray").unlink()
    sealed = complete(folder)
    assert isinstance(sealed, SealedRound)
    assert set(sealed.record.raw.members) == {"logs/qwen3lab.txt", "trace.json"}


def test_an_open_round_that_never_reached_its_seal_is_not_completed(data, opening):
    with pytest.raises(ValueError, match="not measured to its end"):
        complete(opening(data).folder)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"QWEN3LAB_ROUND_SEALED_BY": "me"}, "'me', allowed: runner"),
        ({"QWEN3LAB_ROUND_SEALED_BY": "runner"}, "without QWEN3LAB_ROUND_MARK"),
    ],
)
def test_a_half_told_runner_is_refused(data, opening, monkeypatch, environment, words):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=words):
        opening(data)
    assert not data.exists()


def test_the_source_hash_is_of_what_was_asked(tmp_path):
    asked = source(tmp_path / "a.ipynb")
    same = nbformat.read(asked, as_version=4)
    same.metadata["kernelspec"] = {"name": "other", "display_name": "Other", "language": "python"}
    same.cells[2].outputs = [nbformat.v4.new_output("stream", text="1.23 s")]
    same.cells[2].execution_count = 7
    same.cells[2].metadata["papermill"] = {"duration": 1.0}
    injected = nbformat.v4.new_code_cell("blocks = 9", metadata={"tags": ["injected-parameters"]})
    same.cells.insert(2, injected)
    (tmp_path / "b.ipynb").write_text(json.dumps(same, indent=4))
    assert notebook.source_sha256(asked) == notebook.source_sha256(tmp_path / "b.ipynb")
    other = source(tmp_path / "c.ipynb", CODE + "# one more word")
    assert notebook.source_sha256(asked) != notebook.source_sha256(other)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"\xff", b'{"nbformat": 4, "nbformat_minor": 5, "cells": [{}]}']
)
def test_what_is_no_notebook_is_refused_by_name(tmp_path, data, opening, filling, content):
    (tmp_path / "bad.ipynb").write_bytes(content)
    rnd = filling(opening(data))
    with pytest.raises(ValueError, match=r"bad\.ipynb: not a notebook"):
        rnd.seal(notebook=tmp_path / "bad.ipynb")
    assert list(rounds(data)) == []


def test_an_executed_notebook_needs_its_source(tmp_path, data, opening, filling):
    rnd = filling(opening(data))
    with pytest.raises(ValueError, match="name the source"):
        rnd.seal(executed=source(tmp_path / "a.ipynb"))
    with pytest.raises(ValueError, match="nothing more goes into it"):
        rnd.add_raw("late", b"")
    sealed = rnd.seal(notebook=tmp_path / "a.ipynb", executed=tmp_path / "a.ipynb")
    assert set(sealed.record.raw.members) == {"logs/qwen3lab.txt", "trace.json"}
