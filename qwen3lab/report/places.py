"""Where the project keeps things: found from the package, so that a notebook runs the same from any working directory.

QWEN3LAB_DATA names another folder for rounds: tests and trials use it, so that nothing of theirs enters the project's.
"""

from __future__ import annotations

import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
NOTEBOOKS = PROJECT / "notebooks"
NANO = PROJECT / "data" / "nano"


def data_root() -> Path:
    """The folder that rounds are sealed into and reports are drawn from."""
    named = os.environ.get("QWEN3LAB_DATA", "")
    return Path(named).absolute() if named else PROJECT / "data"


def reports_of(data: Path) -> Path:
    """Where the report of a data folder goes: beside it, so that a trial's pages never replace the project's."""
    return data.absolute().parent / "reports"


def checkpoint(model: str) -> str:
    """What `model` names: "nano" is the small model that ships here; all else is a folder or a hub id already."""
    if model != "nano":
        return str(Path(model).absolute()) if Path(model).is_dir() else model
    if not (NANO / "config.json").is_file():
        raise FileNotFoundError(f"{NANO}: no checkpoint; restore it from git, or train it: qwen3lab checkpoint train")
    return str(NANO)


def notebook(rung_id: str) -> Path:
    """The one notebook of a rung; FileNotFoundError where it is not written yet."""
    found = sorted(NOTEBOOKS.glob(f"{rung_id}_*.ipynb"))
    if len(found) != 1:
        there = ", ".join(sorted(path.stem for path in NOTEBOOKS.glob("v*.ipynb"))) or "none"
        raise FileNotFoundError(f"{rung_id}: {len(found)} notebooks in {NOTEBOOKS.name}/; there are: {there}")
    return found[0]


def written_rungs() -> list[str]:
    """Ids of the rungs that have a notebook, in order."""
    return sorted({path.name.split("_")[0] for path in NOTEBOOKS.glob("v[0-9][0-9]_*.ipynb")})
