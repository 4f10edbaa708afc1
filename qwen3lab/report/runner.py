"""One notebook, headless, strictly: papermill does the work, and whatever it lets pass is an error here.

papermill (2.7) only warns of an unknown parameter or a missing parameters cell, takes `sys.exit(0)` for success and
waits for ever by default. Here a notebook has run when every one of its cells completed and it left exactly one
measured round; that round is then sealed with the executed notebook in it. What failed is kept for reading in
data/archive/failed/, outside the index.

Each notebook has a papermill process of its own: ports, working directories and a kernel that dies stay apart.
"""

from __future__ import annotations

import difflib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
import papermill
import yaml  # type: ignore[import-untyped]  # papermill's own dependency

from qwen3lab import variants
from qwen3lab.record import SealedRound, complete
from qwen3lab.report import places

CELL_TIMEOUT_S = 3600
START_TIMEOUT_S = 120
DEAD_KERNEL = 138  # papermill's exit code for it


class NotebookFailed(RuntimeError):
    """A notebook that did not measure what it was asked to: which, where, and where its remains are."""


class UnknownParameter(NotebookFailed, ValueError):
    """A parameter that the notebook's parameters cell does not have."""


def run(
    notebook: str | Path,
    profile: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    out_root: str | Path | None = None,
    cell_timeout_s: int = CELL_TIMEOUT_S,
) -> SealedRound:
    """Run a rung ("v01") or a notebook's path, and seal its round under `out_root` (None: the project's data folder).

    parameters  of its parameters cell, by name; `profile` is one of them
    Raises ValueError for an unknown rung, NotebookFailed for everything else that is not one complete, sealed run.
    """
    path = source(notebook)
    given = {**(parameters or {}), **({"profile": profile} if profile is not None else {})}
    check_source(path, given)
    root = Path(out_root).absolute() if out_root is not None else places.data_root()
    with tempfile.TemporaryDirectory(prefix="qwen3lab-") as folder:
        executed, mark = Path(folder) / "executed.ipynb", Path(folder) / "mark"
        _install_kernel(Path(folder))
        try:
            _papermill(path, executed, given, _environment(root, mark, Path(folder)), cell_timeout_s)
            check_executed(path, executed)
            measured = _measured(path, mark)
            _tidy(executed, path.name)
            return complete(measured, notebook=path, executed=executed)
        except NotebookFailed as error:
            raise NotebookFailed(f"{error}{_keep(executed, root, path)}") from None


def source(notebook: str | Path) -> Path:
    """The notebook of a rung's id, or the one at a path."""
    if isinstance(notebook, str) and notebook in variants.BY_ID:
        return places.notebook(notebook)
    path = Path(notebook)
    if path.suffix != ".ipynb":
        variants.get(str(notebook))  # raises, and says what rungs there are
    if not path.is_file():
        raise NotebookFailed(f"{path}: no such notebook")
    return path.absolute()


def check_source(path: Path, given: Mapping[str, Any]) -> None:
    """Raise NotebookFailed unless the notebook has one parameters cell and that cell knows every name in `given`."""
    try:
        node = nbformat.read(path, as_version=4)
        known = list(papermill.inspect_notebook(str(path)))
    except Exception as error:  # nbformat raises its own, JSON's and the codec's; papermill one for a missing language
        raise NotebookFailed(f"{path.name}: not a notebook that papermill can run ({error})") from None
    tagged = [i for i, cell in enumerate(node.cells) if "parameters" in cell.metadata.get("tags", [])]
    if len(tagged) != 1:
        what = f"cells {tagged} are" if tagged else "no cell is"
        raise NotebookFailed(f"{path.name}: {what} tagged 'parameters'; exactly one must be")
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UnknownParameter(f"{path.name}: unknown parameter {name!r}; {hint}It takes {', '.join(known)}")


def check_executed(source_path: Path, executed: Path) -> None:
    """Raise NotebookFailed unless every code cell of the executed notebook ran to its end without an error."""
    for number, cell in _own_cells(executed):
        if cell.cell_type != "code":
            continue
        where = f"{source_path.name}, cell {number}"
        for output in cell.outputs:
            if output.output_type == "error":
                raise NotebookFailed(f"{where}: {f'{output.ename}: {output.evalue}'.rstrip(': ')}")
        status = _status(cell)
        if cell.source.strip() and (status != "completed" or cell.execution_count is None):
            raise NotebookFailed(f"{where}: did not run ({status or 'no status'})")


def _status(cell: Any) -> str | None:
    status: str | None = cell.metadata.get("papermill", {}).get("status")
    return status


def _own_cells(executed: Path) -> Iterator[tuple[int, Any]]:
    """The source's own cells with their numbers: papermill adds its injected one, and banners where one failed."""
    added = {"injected-parameters", "papermill-error-cell-tag"}
    cells = nbformat.read(executed, as_version=4).cells
    return enumerate((cell for cell in cells if not added.intersection(cell.metadata.get("tags", []))), start=1)


def _papermill(
    path: Path, executed: Path, given: Mapping[str, Any], environment: Mapping[str, str], cell_timeout_s: int
) -> None:
    """Run papermill to its end. What the notebook writes to stderr, its progress bar, goes to ours as it comes."""
    command = [
        sys.executable, "-m", "papermill", str(path), str(executed), "--kernel", "python3", "--cwd", str(path.parent),
        "--execution-timeout", str(cell_timeout_s), "--start-timeout", str(START_TIMEOUT_S),
        # Saved between cells, so that something is left of a kernel that dies, and never while one is measuring.
        "--request-save-on-cell-execute", "--autosave-cell-every", "0",
        "--no-progress-bar", "--log-level", "ERROR", "--stderr-file", "-",
        # YAML, not -p: papermill guesses at the type of what -p is given.
        "--parameters_yaml", yaml.safe_dump(dict(given)),
    ]  # fmt: skip
    # papermill limits each cell; this bounds the process, should it hang itself.
    limit_s = 2 * START_TIMEOUT_S + cell_timeout_s * len(nbformat.read(path, as_version=4).cells)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=2, stderr=log)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise NotebookFailed(f"{path.name}: papermill itself ran for over {limit_s} s and was ended") from None
        finally:
            process.kill()  # nothing, where it has ended; its kernel ends with it
            process.wait()
        log.seek(0)
        said = log.read().decode(errors="replace").strip()
    if code:
        raise NotebookFailed(_why(path, executed, code, said, cell_timeout_s))


def _why(path: Path, executed: Path, code: int, said: str, cell_timeout_s: int) -> str:
    """What ended papermill: the cell's error where there is one, else what papermill itself said last."""
    if not executed.exists():
        return f"{path.name}: papermill ended with {code} before the first cell: {said[-500:]}"
    if code == DEAD_KERNEL:
        # papermill notes the cell as completed all the same; it is the last one that was begun.
        begun = [n for n, cell in _own_cells(executed) if _status(cell) not in (None, "pending")]
        last = max(begun, default=1)
        return f"{path.name}, cell {last}: the kernel died: out of memory, or killed"
    try:
        check_executed(path, executed)
    except NotebookFailed as error:
        late = f"; it had not ended after {cell_timeout_s} s" if "CellTimeoutError" in said else ""
        return f"{error}{late}"
    return f"{path.name}: papermill ended with {code}: {said[-500:]}"


def _install_kernel(folder: Path) -> None:
    """Make this very interpreter the kernel called python3, whatever other kernels of that name there are."""
    command = [sys.executable, "-m", "qwen3lab.report.kernel", "-f", "{connection_file}"]
    spec = {"argv": command, "display_name": "Python 3", "language": "python"}
    home = folder / "kernels" / "python3"
    home.mkdir(parents=True)
    (home / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")


def _environment(root: Path, mark: Path, kernels: Path) -> dict[str, str]:
    """The kernel's: rounds go to `root` and are sealed by this runner; Jupyter looks for python3 in `kernels` first."""
    return {
        **os.environ,
        "JUPYTER_PATH": os.pathsep.join(filter(None, (str(kernels), os.environ.get("JUPYTER_PATH", "")))),
        "QWEN3LAB_DATA": str(root),
        "QWEN3LAB_ROUND_SEALED_BY": "runner",
        "QWEN3LAB_ROUND_MARK": str(mark),
    }


def _measured(path: Path, mark: Path) -> Path:
    """The one open round that the notebook measured."""
    folders = mark.read_text(encoding="utf-8").splitlines() if mark.exists() else []
    if len(folders) != 1:
        raise NotebookFailed(f"{path.name}: sealed {len(folders) or 'no'} rounds; a notebook seals exactly one")
    return Path(folders[0])


def _tidy(executed: Path, name: str) -> None:
    """Take this machine's paths and the state of widgets, which is no result, out of the executed notebook."""
    node = nbformat.read(executed, as_version=4)
    node.metadata.papermill.update(input_path=name, output_path=executed.name)
    node.metadata.pop("widgets", None)
    nbformat.write(node, executed)


def _keep(executed: Path, root: Path, path: Path) -> str:
    """Copy what ran of a failed notebook beside the archives; the words that say where."""
    if not executed.exists():
        return ""
    folder = root / "archive" / "failed"
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{path.stem}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.ipynb"
    shutil.copyfile(executed, kept)
    return f". What ran of it: {kept}"
