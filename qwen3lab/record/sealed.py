"""A sealed round as a report gets it: verified first, and each member hashed again as it is handed out."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwen3lab.record import canonical, frames, notebook, raw
from qwen3lab.record.index import Index
from qwen3lab.record.problems import Problem, UnverifiedRound
from qwen3lab.record.schema import Record, Verdict
from qwen3lab.record.verify import check, home

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class SealedRound:
    """`sha256` is the round's identity (of its SHA256SUMS); `notes` say what verification could not see."""

    path: Path
    record: Record
    sha256: str
    sums: dict[str, str]
    notes: tuple[str, ...]

    @classmethod
    def load(cls, path: str | Path) -> SealedRound:
        """The round at `path`. Raises UnverifiedRound, naming every problem, where one byte of it is not as sealed."""
        path = Path(path).absolute()
        found = check(path)
        if found.problems or found.record is None or found.sha256 is None:
            raise UnverifiedRound(found.problems)
        return cls(path, found.record, found.sha256, found.sums, found.notes)

    @property
    def verdicts(self) -> list[Verdict]:
        return self.record.verdicts

    def frame(self, name: str) -> pd.DataFrame:
        """The samples that were added under `name`."""
        if name not in self.record.frames:
            raise KeyError(f"{self.record.round} has no frame {name!r}; it has {', '.join(sorted(self.record.frames))}")
        return frames.from_parquet(self._member(self.record.frames[name].member))

    def outputs(self) -> frames.Outputs:
        """arm → workload → token ids, one list a request; empty where none were added."""
        if "outputs" not in self.record.frames:
            return {}
        return frames.outputs_from_parquet(self._member(self.record.frames["outputs"].member))

    @property
    def executed_notebook(self) -> Any:
        """The executed notebook as nbformat's NotebookNode, or None: record.notebook.why_absent says why."""
        name = self.record.notebook.executed
        return notebook.parse(self._member(name), f"{self.record.round}/{name}") if name else None

    def _member(self, name: str) -> bytes:
        data = (self.path / name).read_bytes()
        if canonical.sha256(data) != self.sums[name]:
            what = "changed since it was verified"
            raise UnverifiedRound([Problem(self.record.round, name, what, "restore the round from git")])
        return data

    def _repr_html_(self) -> str:
        record = self.record
        facts = {
            "question": record.question,
            "round": f"{record.variant} / {record.round}, profile {record.profile}",
            "measured": f"{record.started} to {record.finished} ({record.elapsed_s:.1f} s)",
            "source": f"{record.git.commit}{' and changes' if record.git.dirty else ''}"
            if record.git.commit
            else f"no commit: {record.git.why_absent}",
            "samples": ", ".join(f"{name} ({frame.rows} rows)" for name, frame in sorted(record.frames.items())),
            "sha256": self.sha256,
        }
        rows = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in facts.items())
        verdicts = "".join(f"<li>{html.escape(sentence(verdict))}</li>" for verdict in record.verdicts)
        return f"<div><p><b>Sealed round, verified</b></p><ul>{verdicts}</ul><table>{rows}</table></div>"


def sentence(verdict: Verdict) -> str:
    """A verdict in words: what was compared, the ratio with its interval, the word."""
    ratio = "no ratio" if verdict.ratio is None else f"×{verdict.ratio:.3f}"
    known = verdict.ci_low is not None and verdict.ci_high is not None
    interval = f" [{verdict.ci_low:.3f}, {verdict.ci_high:.3f}]" if known else ", no interval"
    return (
        f"{verdict.workload} · {verdict.metric}: {verdict.arm_b} against {verdict.arm_a} {ratio}{interval} "
        f"over {verdict.n_blocks} blocks: {verdict.word} (tokens: {verdict.tokens})"
    )


def rounds(root: str | Path = "data") -> Iterator[SealedRound]:
    """Every round of the index, newest last, each verified. Raises UnverifiedRound at the first that does not pass."""
    for line in Index.read(Path(root)).require().lines:
        yield SealedRound.load(Path(root) / line.path)


def latest(root: str | Path, variant: str, profile: str | None = None) -> SealedRound | None:
    """The newest round of `variant` (and of `profile`, where one is named), or None where the index has none."""
    for line in reversed(Index.read(Path(root)).require().lines):
        if line.variant == variant and profile in (None, line.profile):
            return SealedRound.load(Path(root) / line.path)
    return None


def extract(round_: SealedRound | str | Path, to: str | Path, limit_bytes: int = raw.EXTRACT_LIMIT_BYTES) -> Path:
    """The raw members of a round as files under the new or empty folder `to`.

    Raises UnverifiedRound, FileNotFoundError where the archive is kept elsewhere, ValueError where it would unpack to
    more than `limit_bytes`.
    """
    sealed = round_ if isinstance(round_, SealedRound) else SealedRound.load(round_)
    if sealed.record.raw is None:
        raise ValueError(f"{sealed.record.round} has no raw members; nothing to extract")
    archive = raw.archive_path(home(sealed.path), sealed.record.round)
    if not archive.is_file():
        raise FileNotFoundError(f"{archive}: not on this machine; copy it from the one that measured")
    raw.unpack(archive, sealed.record.raw.members, Path(to), limit_bytes)
    return Path(to)
