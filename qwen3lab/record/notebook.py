"""A round's notebook: the source by the hash of its stripped form, and the executed copy as it came out of the kernel.

The stripped form is what a reader would call the notebook: each cell's type, text, attachments and tags, in order.
Outputs, counters, ids, timestamps and kernel names are left out, so the hash stands for the question that was asked.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from qwen3lab.record import canonical
from qwen3lab.record.schema import EXECUTED, Notebook

# papermill's tag for the cell that it adds; it belongs to a run, not to the source.
INJECTED = "injected-parameters"


def parse(data: bytes, where: str) -> Any:
    """A valid nbformat 4 NotebookNode. Raises ValueError naming `where`."""
    import nbformat  # here: it builds a grammar of URIs at import, which takes longer than all else in this room

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # cells without ids: older notebooks are still notebooks
            node = nbformat.reads(data.decode("utf-8"), as_version=4)
            nbformat.validate(node)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError, nbformat.ValidationError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{where}: not a notebook ({reason}); save it again") from None
    return node


def stripped(node: Any) -> list[dict[str, Any]]:
    """The stripped form: one dictionary a cell, without papermill's injected one."""
    cells = []
    for cell in node.cells:
        tags = sorted(cell.metadata.get("tags", []))
        if INJECTED not in tags:
            attachments = json.loads(json.dumps(cell.get("attachments", {})))
            cells.append({"type": cell.cell_type, "source": cell.source, "attachments": attachments, "tags": tags})
    return cells


def source_sha256(path: Path) -> str:
    """The hash of the stripped form of the notebook at `path`."""
    return canonical.sha256(canonical.dumps(stripped(parse(path.read_bytes(), str(path))), str(path)))


def describe(source: Path | None, executed: Path | None) -> tuple[Notebook, bytes | None]:
    """What the record says of the two, and the bytes of the executed one.

    Raises ValueError where `executed` did not run the cells of `source`: its outputs would answer another question.
    """
    if source is None:
        if executed is not None:
            raise ValueError(f"executed={str(executed)!r} without notebook=; name the source that it was run from")
        return Notebook(why_absent="no notebook was named when the round was sealed"), None
    name, digest = source.name, source_sha256(source)
    if executed is None:
        why = "sealed from inside its own kernel: a notebook cannot hold the output of a cell that is still running"
        return Notebook(source=name, source_sha256=digest, why_absent=why), None
    data = executed.read_bytes()
    asked, ran = stripped(parse(source.read_bytes(), str(source))), stripped(parse(data, str(executed)))
    for number, (one, other) in enumerate(zip(asked, ran, strict=False), start=1):
        if one != other:
            raise ValueError(f"{executed}: cell {number} is not that of {source}; run the notebook again")
    if len(asked) != len(ran):
        raise ValueError(f"{executed}: {len(ran)} cells, {source} has {len(asked)}; run the notebook again")
    return Notebook(source=name, source_sha256=digest, executed=EXECUTED), data
