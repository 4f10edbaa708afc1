"""The last step: what was measured gets its notebook, its SHA256SUMS, its final name, and its line in the index."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from qwen3lab.record import canonical, index, sums
from qwen3lab.record.files import discard_parts, sha256_file, sync_folder, write_whole, writing
from qwen3lab.record.notebook import describe
from qwen3lab.record.schema import EXECUTED, RECORD, Record, read_record
from qwen3lab.record.sealed import SealedRound
from qwen3lab.record.verify import NOT_INDEXED, OPEN, check_all, home

OPENED = "opened.json"  # what the run was for, should it never get further
STAGING = "raw"


def complete(
    open_folder: str | Path, notebook: str | Path | None = None, executed: str | Path | None = None
) -> SealedRound:
    """Seal the measured round in `open_folder` (`….open`), with the source and the executed copy of its notebook.

    Raises ValueError where the round was not measured to its end or the notebooks do not belong together, and OSError
    where something cannot be written; in each case the round stays unsealed, and `complete` may be called again.
    """
    folder = Path(open_folder).absolute()
    record = _measured(folder)
    paper, copy = describe(Path(notebook) if notebook else None, Path(executed) if executed else None)
    record = record.model_copy(update={"notebook": paper})
    discard_parts(folder)
    (folder / OPENED).unlink(missing_ok=True)
    if (folder / STAGING).is_dir():
        shutil.rmtree(folder / STAGING)  # packed already: the record has its members
    if copy is None:
        (folder / EXECUTED).unlink(missing_ok=True)
    else:
        write_whole(folder / EXECUTED, copy)
    write_whole(folder / RECORD, record.to_bytes())
    manifest = _manifest(folder, record)
    write_whole(folder / sums.SUMS, manifest)
    sync_folder(folder)
    return SealedRound.load(_publish(folder, record, canonical.sha256(manifest)))


def repair(root: str | Path) -> list[str]:
    """Add the rounds that a crash left sealed but not in the index; their ids. Only rounds with no other fault go in.

    Raises UnverifiedRound where the index itself is broken: that is for whoever broke it to undo.
    """
    root = Path(root)
    added: list[str] = []
    with index.locked(root):
        index.Index.read(root).require()
        for found in check_all(root):
            lost = [problem for problem in found.problems if problem.what == NOT_INDEXED]
            if lost and len(found.problems) == 1 and found.record is not None and found.sha256 is not None:
                _append(root, found.record, found.sha256)
                added.append(found.round)
    return added


def _measured(folder: Path) -> Record:
    if not folder.name.endswith(OPEN) or not folder.is_dir():
        raise ValueError(f"{folder}: not the folder of an open round, which ends in {OPEN}")
    try:
        data = (folder / RECORD).read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{folder}: not measured to its end, seal() was not reached; run the notebook again") from None
    record = read_record(data, str(folder / RECORD))
    if (folder.parent.parent.name, folder.parent.name, folder.name) != ("rounds", record.variant, record.round + OPEN):
        raise ValueError(f"{folder}: its record belongs in rounds/{record.variant}/{record.round}{OPEN}; move it back")
    return record


def _manifest(folder: Path, record: Record) -> bytes:
    present = {entry.name for entry in folder.iterdir()} - {sums.SUMS}
    if present != record.members:
        strange, missing = sorted(present - record.members), sorted(record.members - present)
        raise ValueError(f"{folder}: not as its record has it: {strange} added, {missing} missing; measure again")
    return sums.render({name: sha256_file(folder / name) for name in present})


def _publish(folder: Path, record: Record, sha256: str) -> Path:
    """Rename, then the index line. A crash in between leaves a sealed round that `repair` can add."""
    final, root = folder.with_name(record.round), home(folder)
    with index.locked(root):
        if final.exists():
            raise FileExistsError(f"{final} exists already; a round is sealed once")
        with writing(final):
            os.rename(folder, final)
        try:
            sync_folder(final.parent)
            _append(root, record, sha256)
        except BaseException:
            os.rename(final, folder)  # a disk that fills up here leaves the round unsealed, as anywhere else
            raise
    return final


def _append(root: Path, record: Record, sha256: str) -> None:
    index.append(
        root,
        round_id=record.round,
        variant=record.variant,
        profile=record.profile,
        finished=record.finished,
        sha256=sha256,
    )
