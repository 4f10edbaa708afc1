"""Verification: every byte of a sealed round is accounted for, and what is not is named with its remedy.

    index.jsonl ──sha256──▶ SHA256SUMS ──sha256──▶ record.json, *.parquet, notebook.ipynb
                                                   record.json ──sha256──▶ members of archive/<round>.tar.zst

Nothing is opened that is not a plain file directly in the round's folder, under a name that SHA256SUMS may hold.
Verification only reads, and takes no lock: it works on a data folder that cannot be written.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, field, replace
from pathlib import Path

from qwen3lab.record import canonical, raw, sums
from qwen3lab.record.files import sha256_file
from qwen3lab.record.index import INDEX, Index
from qwen3lab.record.problems import Problem
from qwen3lab.record.schema import RECORD, Record, SchemaError, read_record

OPEN = ".open"
NOT_INDEXED = "sealed, but not in the index"
UNSEALED = "not sealed: the run failed, was interrupted, or still goes on"


@dataclass(frozen=True)
class Check:
    """What verification found in one place. `notes` are no faults: an archive that is kept elsewhere, an open round.

    record, sums (member → sha256) and sha256 (of SHA256SUMS: the round's identity) are there where they could be read.
    """

    round: str
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    record: Record | None = None
    sums: dict[str, str] = field(default_factory=dict)
    sha256: str | None = None


class _Findings:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[Problem] = []
        self.notes: list[str] = []

    def add(self, member: str | None, what: str, remedy: str | None = None) -> None:
        restore = f"restore the round from git (git checkout -- {self.folder}) or from a copy"
        self.problems.append(Problem(self.folder.name, member, what, remedy or restore))


def home(folder: Path) -> Path:
    """The data folder that the round in `folder` lies in."""
    return folder.parent.parent.parent


def verify(path: str | Path) -> list[Problem]:
    """Everything that is wrong with the sealed round at `path`; nothing: every byte is as it was sealed."""
    return list(check(path).problems)


def verify_all(root: str | Path = "data") -> list[Problem]:
    """Everything that is wrong under the data folder `root`: its index, and every round in it."""
    return [problem for found in check_all(root) for problem in found.problems]


def check_all(root: str | Path = "data") -> list[Check]:
    """One Check for the index, then one for every folder under rounds/, oldest first within a variant."""
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such data folder; name one, or measure a first round")
    folders, strays = _folders(root)
    index = Index.read(root)
    absent = [
        Problem(INDEX, line.path, "the index names this round and it is absent", f"restore {root / line.path} from git")
        for line in index.lines
        if root / line.path not in folders
    ]
    checks = [Check(INDEX, (*index.problems, *absent, *strays))]
    for folder in folders:
        if folder.name.endswith(OPEN):
            checks.append(Check(folder.name, notes=(UNSEALED,)))
        else:
            checks.append(check(folder, index))
    return checks


def check(path: str | Path, index: Index | None = None) -> Check:
    """The round at `path`, its members, and its line in the index."""
    folder = Path(path).absolute()
    found = check_folder(folder)
    if found.sha256 is None:
        return found
    faults = _Findings(folder)
    known = index or Index.read(home(folder))
    line = known.find(folder.name)
    if line is None:
        faults.add(None, NOT_INDEXED, "record.repair(root) adds it, if a crash left this; else restore the index")
    elif line.sha256 != found.sha256:
        faults.add(sums.SUMS, f"not the file that was sealed: the index has {line.sha256}, this is {found.sha256}")
    elif found.record is not None:
        said = (line.variant, line.profile, line.finished)
        if said != (found.record.variant, found.record.profile, found.record.finished):
            faults.add(None, f"the index says {', '.join(said)}, its record does not", f"restore {INDEX} from git")
    broken = known.problems if index is None else ()  # check_all has them once, for all rounds
    return replace(found, problems=(*found.problems, *faults.problems, *broken))


def check_folder(folder: Path) -> Check:
    """The same without the index."""
    found = _Findings(folder)
    if folder.is_symlink() or not folder.is_dir():
        found.add(None, "not a folder", "name the folder of a sealed round: <data>/rounds/<variant>/<round>")
        return Check(folder.name, tuple(found.problems))
    if folder.name.endswith(OPEN):
        found.add(None, UNSEALED, "measure again")
        return Check(folder.name, tuple(found.problems))
    try:
        present = _plain_files(folder, found)
    except OSError as error:
        found.add(None, f"cannot be read: {error.strerror}", "make it readable")
        return Check(folder.name, tuple(found.problems))
    hashes, identity = _read_sums(folder, present, found)
    record = None
    if identity is not None:
        sound = _members(folder, present, hashes, found)
        record = _record(folder, sound, set(hashes), found)
    if record is not None and record.raw is not None:
        _archive(home(folder), record, found)
    return Check(folder.name, tuple(found.problems), tuple(found.notes), record, hashes, identity)


def _folders(root: Path) -> tuple[list[Path], list[Problem]]:
    """The folders of rounds under `root`, and what lies among them and is none."""
    folders, strays = [], []
    top = root / "rounds"
    for variant in sorted(top.iterdir()) if top.is_dir() else []:
        entries = [variant] if variant.is_symlink() or not variant.is_dir() else sorted(variant.iterdir())
        for entry in entries:
            if entry != variant and entry.is_dir() and not entry.is_symlink():
                folders.append(entry)
            else:
                what = "lies among the rounds and is not one"
                strays.append(Problem("rounds", entry.relative_to(top).as_posix(), what, "move it elsewhere"))
    return folders, strays


def _plain_files(folder: Path, found: _Findings) -> set[str]:
    names = set()
    for entry in folder.iterdir():
        mode = entry.lstat().st_mode
        if stat.S_ISREG(mode):
            names.add(entry.name)
        else:
            kind = "a symbolic link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "a special file"
            found.add(entry.name, f"{kind}; a round holds plain files only")
    return names


def _read_sums(folder: Path, present: set[str], found: _Findings) -> tuple[dict[str, str], str | None]:
    if sums.SUMS not in present:
        found.add(sums.SUMS, "missing")
        return {}, None
    try:
        data = (folder / sums.SUMS).read_bytes()
        return sums.parse(data), canonical.sha256(data)
    except (OSError, ValueError) as error:
        found.add(sums.SUMS, f"cannot be read: {error}")
        return {}, None


def _members(folder: Path, present: set[str], hashes: dict[str, str], found: _Findings) -> set[str]:
    """Compare every file with SHA256SUMS; the names of those that are as they were sealed."""
    actual: dict[str, str] = {}
    for name in sorted(present - {sums.SUMS}):
        try:
            actual[name] = sha256_file(folder / name)
        except OSError as error:
            found.add(name, f"cannot be read: {error.strerror}", "make it readable")
    added = sorted(set(actual) - set(hashes))
    for name in sorted(set(hashes) - present):
        twin = next((other for other in added if actual[other] == hashes[name]), None)
        found.add(name, f"missing: it was renamed to {twin!r}" if twin else "missing")
    for name in added:
        found.add(name, "added: SHA256SUMS does not have it", "move it out of the round")
    sound = {name for name in hashes if actual.get(name) == hashes[name]}
    for name in sorted(set(hashes) & set(actual) - sound):
        found.add(name, f"changed: sha256 is {actual[name]}, sealed as {hashes[name]}")
    return sound


def _record(folder: Path, sound: set[str], sealed: set[str], found: _Findings) -> Record | None:
    if RECORD not in sound:
        if RECORD not in sealed:
            found.add(RECORD, "SHA256SUMS does not have it")
        return None
    try:
        record = read_record((folder / RECORD).read_bytes(), RECORD)
    except (OSError, SchemaError) as error:
        found.add(RECORD, str(error), "read it with the qwen3lab that wrote it, or restore it")
        return None
    home = f"rounds/{record.variant}/{record.round}"
    if (folder.parent.parent.name, folder.parent.name, folder.name) != ("rounds", record.variant, record.round):
        found.add(None, f"its record belongs in {home}", f"put the folder back under <data>/{home}")
    if record.members != sealed:
        found.add(RECORD, f"speaks of {sorted(record.members)}, SHA256SUMS of {sorted(sealed)}")
    return record


def _archive(root: Path, record: Record, found: _Findings) -> None:
    assert record.raw is not None
    path = raw.archive_path(root, record.round)
    if record.raw.archive != path.name:
        found.add(RECORD, f"raw.archive={record.raw.archive!r}, allowed: {path.name}")
    elif path.is_symlink() or (path.exists() and not path.is_file()):
        found.add(path.name, "not a plain file", f"put the archive itself at {path}")
    elif not path.exists():
        found.notes.append(f"{path} is not on this machine: its {len(record.raw.members)} members were not checked")
    else:
        remedy = f"restore {path} from the machine that measured, or delete it: the round stands without it"
        for member, what in raw.faults(path, record.raw.members):
            found.add(f"{path.name}:{member}" if member else path.name, what, remedy)
        found.notes.append(f"{path.name}: {len(record.raw.members)} members checked")
