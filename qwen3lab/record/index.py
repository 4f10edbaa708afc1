"""index.jsonl: one line a sealed round, each holding the hash of the line before, so that rewriting history shows.

A new line is added under a lock, by writing the whole file beside the old one and renaming it over: a reader sees
the index before or after, never half a line. What the chain cannot see, the rounds show: the last line edited (its
round's SHA256SUMS differs) or taken away (its round is sealed and not in the index).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import filelock
from pydantic import model_validator

from qwen3lab.record import canonical
from qwen3lab.record.files import sync_folder, write_whole, writing
from qwen3lab.record.problems import Problem, UnverifiedRound
from qwen3lab.record.schema import Part, RoundId, Sha256, Slug, Utc, validated

INDEX = "index.jsonl"
LOCK_TIMEOUT_S = 60.0
_RESTORE = f"restore {INDEX} from git; lines are only ever added, and only by sealing"


class IndexLine(Part):
    """`sha256` is that of the round's SHA256SUMS; `previous` that of the line before (None: the first line)."""

    round: RoundId
    variant: Slug
    profile: Slug
    path: str
    sha256: Sha256
    finished: Utc
    previous: Sha256 | None

    @model_validator(mode="after")
    def _at_home(self) -> IndexLine:
        if self.path != f"rounds/{self.variant}/{self.round}":
            raise ValueError(f"path={self.path!r}, allowed: rounds/<variant>/<round>")
        return self

    def to_bytes(self) -> bytes:
        return canonical.dumps(self.model_dump(mode="json"), INDEX)


@dataclass(frozen=True)
class Index:
    """The lines that could be read, the problems of those that could not, and the hash that the next line must hold."""

    lines: tuple[IndexLine, ...]
    problems: tuple[Problem, ...]
    head: str | None

    @classmethod
    def read(cls, root: Path) -> Index:
        """The index of the data folder `root`; a folder without one has an empty index."""
        try:
            data = (root / INDEX).read_bytes()
        except FileNotFoundError:
            return cls((), (), None)
        lines: list[IndexLine] = []
        problems: list[Problem] = []
        head: str | None = None
        for number, raw in enumerate(data.removesuffix(b"\n").split(b"\n") if data else [], start=1):
            where = f"line {number}"
            try:
                line = validated(IndexLine, canonical.loads(raw, where), where)
            except ValueError as error:
                problems.append(Problem(INDEX, None, str(error), _RESTORE))
            else:
                if line.to_bytes() != raw:
                    problems.append(Problem(INDEX, None, f"{where} is not in canonical form", _RESTORE))
                if line.previous != head:
                    what = f"{where} does not continue the line before it: one of them was edited, added or taken away"
                    problems.append(Problem(INDEX, None, what, _RESTORE))
                if any(line.round == other.round for other in lines):
                    problems.append(Problem(INDEX, None, f"{where} names {line.round} again", _RESTORE))
                lines.append(line)
            head = canonical.sha256(raw)
        if data and not data.endswith(b"\n"):
            problems.append(Problem(INDEX, None, "its last line is cut short", _RESTORE))
        return cls(tuple(lines), tuple(problems), head)

    def require(self) -> Index:
        """Itself. Raises UnverifiedRound where it has problems."""
        if self.problems:
            raise UnverifiedRound(self.problems)
        return self

    def find(self, round_id: str) -> IndexLine | None:
        return next((line for line in self.lines if line.round == round_id), None)


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Only this process writes to the index of `root` within the block. Raises TimeoutError naming the lock."""
    path = root / f"{INDEX}.lock"
    lock = filelock.FileLock(path)
    try:
        with writing(path):
            lock.acquire(timeout=LOCK_TIMEOUT_S)
    except filelock.Timeout:  # which is an OSError without an errno
        message = f"{path}: held by another process for {LOCK_TIMEOUT_S:.0f} s; wait for its round to be sealed"
        raise TimeoutError(message) from None
    try:
        yield
    finally:
        lock.release()


def append(root: Path, *, round_id: str, variant: str, profile: str, finished: str, sha256: str) -> None:
    """One more line; call it inside `locked`. Raises UnverifiedRound where the index is broken already."""
    index = Index.read(root).require()
    if index.find(round_id) is not None:
        raise ValueError(f"{INDEX}: {round_id} is in the index already; a round is sealed once")
    line = IndexLine(
        round=round_id,
        variant=variant,
        profile=profile,
        path=f"rounds/{variant}/{round_id}",
        sha256=sha256,
        finished=finished,
        previous=index.head,
    )
    path = root / INDEX
    before = path.read_bytes() if path.exists() else b""
    write_whole(path, before + line.to_bytes() + b"\n")
    sync_folder(root)
