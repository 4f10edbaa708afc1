"""Round: opened before anything is measured, filled while it is, sealed when it has all been said.

    with Round.open("v01", "smoke", "Where do we start?", {"profile": "smoke"}) as rnd:
        rnd.set(machine=…, metrics=…)
        rnd.add_frame("samples", frame)
        rnd.seal(notebook="v01_….ipynb")

`open` fails at once where the data folder cannot be written or its index does not verify, so that no hour of measuring
is lost to it. In a notebook the `with` may be left out; an exception then leaves the round unsealed just the same.
"""

from __future__ import annotations

import contextlib
import html
import os
import secrets
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from qwen3lab.record import canonical, frames, index, provenance, raw
from qwen3lab.record.files import copy_whole, sync_folder, write_whole, writing
from qwen3lab.record.schema import (
    RECORD,
    SCHEMA_VERSION,
    Facts,
    Frame,
    Notebook,
    Opened,
    Raw,
    Record,
    Verdict,
    validated,
)
from qwen3lab.record.sealed import SealedRound
from qwen3lab.record.sealing import OPENED, STAGING, complete
from qwen3lab.record.verify import OPEN

if TYPE_CHECKING:
    import pandas as pd

State = Literal["measuring", "measured", "sealed", "abandoned"]
SETTABLE = ("machine", "libraries", "workloads", "metrics", "arms", "comparison")


class Round:
    """An open round. `folder` is where its members are, `id` its name, `state` how far it is."""

    def __init__(self, root: Path, opened: Opened, mark: Path | None) -> None:
        self.root, self.opened, self.id = root, opened, opened.round
        self.folder = root / "rounds" / opened.variant / f"{opened.round}{OPEN}"
        self.state: State = "measuring"
        self._mark = mark
        self._began_s = time.monotonic()
        self._facts: dict[str, Any] = {"libraries": provenance.libraries(), "verdicts": [], "notes": []}
        self._frames: dict[str, Frame] = {}
        self._outputs: dict[str, Mapping[str, Sequence[Sequence[int]]]] = {}
        self._handed_over = False

    @classmethod
    def open(
        cls, variant: str, profile: str, question: str, parameters: Mapping[str, object], root: str | Path = "data"
    ) -> Round:
        """A new round in a folder of its own under `root`, with the time, the source's git state and the command line.

        Raises ValueError for names and parameters that a record cannot hold, OSError naming a folder that cannot be
        written, UnverifiedRound where the index is broken.
        """
        now = datetime.now(UTC)
        opened = validated(
            Opened,
            {
                "schema_version": SCHEMA_VERSION,
                "round": f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}",
                "variant": variant,
                "profile": profile,
                "question": question,
                "parameters": canonical.plain(parameters, "parameters"),
                "started": f"{now:%Y-%m-%dT%H:%M:%SZ}",
                "git": provenance.git_state(Path(__file__)),
                "argv": provenance.argv(),
            },
            "Round.open",
        )
        opening = cls(Path(root).absolute(), opened, _mark())
        for folder in (opening.folder.parent, opening.root / "archive", opening.root):
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=folder).close()  # a folder that exists may still be closed to us
        with index.locked(opening.root):
            index.Index.read(opening.root).require()
        with writing(opening.folder):
            opening.folder.mkdir()
        write_whole(opening.folder / OPENED, canonical.dumps(opened.model_dump(mode="json"), OPENED))
        return opening

    def set(self, **facts: object) -> None:
        """Tell what ran: machine, libraries (added to this interpreter's), workloads, metrics, arms, comparison."""
        self._require_open()
        for name, given in facts.items():
            if name not in SETTABLE:
                raise TypeError(f"unknown fact {name!r}; a round has {', '.join(SETTABLE)}")
            value = canonical.plain(given, name)
            validated(Facts, {name: value}, "Round.set")
            self._facts[name] = self._facts["libraries"] | value if name == "libraries" else value

    def add_frame(self, name: str, frame: pd.DataFrame) -> None:
        """Keep a table of raw samples, as Parquet, on the disk when this returns."""
        self._require_open()
        if name in self._frames or name == "outputs":
            raise ValueError(f"frame {name!r} is taken; samples are added once and never overwritten")
        self._frames[name] = self._write_frame(*frames.to_parquet(name, frame))

    def add_outputs(self, arm: str, outputs: Mapping[str, Sequence[Sequence[int]]]) -> None:
        """Keep the token ids that `arm` produced: workload → one list of ids a request."""
        self._require_open()
        if arm in self._outputs:
            raise ValueError(f"outputs of arm {arm!r} are there already; they are added once and never overwritten")
        empty = sorted(workload for workload, requests in outputs.items() if not requests)
        if empty or not outputs:
            raise ValueError(f"arm {arm!r} has no requests for {empty or 'any workload'}; leave out what did not run")
        frames.outputs_to_parquet("outputs", {arm: outputs})  # raises now, not when the round is sealed
        self._outputs[arm] = {workload: [list(ids) for ids in requests] for workload, requests in outputs.items()}

    def add_raw(self, name: str, content: bytes | str | Path) -> None:
        """Keep bytes, or a copy of the file at a path, for the local archive; `name` may have folders (`a/b.json`)."""
        self._require_open()
        raw.check_name(name)
        target = self.folder / STAGING / name
        if target.exists():
            raise ValueError(f"raw member {name!r} is there already; it is added once and never overwritten")
        with writing(target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            write_whole(target, content)
        else:
            copy_whole(Path(content), target)

    def logger(self, name: str) -> Callable[[Mapping[str, object]], None]:
        """A function that appends a mapping to the raw member `name`, a JSON line each, on the disk when it returns.

        What is measured survives there, in the open round, whatever ends the measurement.
        """
        self.add_raw(name, b"")
        target = self.folder / STAGING / name

        def log(row: Mapping[str, object]) -> None:
            self._require_open()
            with writing(target), open(target, "ab") as file:
                file.write(canonical.dumps(canonical.plain(row, name), name) + b"\n")
                file.flush()
                os.fsync(file.fileno())

        return log

    def add_verdicts(self, verdicts: Iterable[Mapping[str, object]]) -> None:
        """Keep what was concluded; each is a mapping with the fields of schema.Verdict."""
        self._require_open()
        plain = [canonical.plain(verdict, f"verdicts[{i}]") for i, verdict in enumerate(verdicts)]
        for i, verdict in enumerate(plain):
            validated(Verdict, verdict, f"verdicts[{i}]")
        self._facts["verdicts"] += plain

    def add_note(self, note: str) -> None:
        self._require_open()
        self._facts["notes"].append(canonical.plain(note, "note"))

    def seal(self, notebook: str | Path | None = None, executed: str | Path | None = None) -> SealedRound | Round:
        """Write everything down and seal: the SealedRound. Where a runner seals (see the package), this open round.

        The runner names the notebooks itself: `notebook` and `executed` then go unused. A seal that failed, for want
        of space or with the wrong notebook, may be tried again; nothing can be added in between.
        """
        if self.state != "measured" or self._handed_over:
            self._require_open()
            if not self._facts.get("machine"):
                raise ValueError("the round has no machine; rnd.set(machine=…) before it is sealed")
            self._write_record()
            self.state = "measured"
        if self._mark is None:
            sealed = complete(self.folder, notebook, executed)
            self.state, self.folder = "sealed", sealed.path
            return sealed
        with writing(self._mark), open(self._mark, "a", encoding="utf-8") as mark:
            mark.write(f"{self.folder}\n")
        self._handed_over = True
        return self

    def __enter__(self) -> Round:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.state != "measuring":
            return
        self.state = "abandoned"
        why = "".join(traceback.format_exception(error)) if error else "the block ended without seal()\n"
        with contextlib.suppress(OSError):  # a full disk may be what ended it, and the first error is the one to show
            write_whole(self.folder / "failure.txt", why.encode("utf-8", "backslashreplace"))
        if error is None:
            warnings.warn(f"{self.folder}: never sealed: the block ended without seal()", stacklevel=2)

    def _write_record(self) -> None:
        """record.json, last of all and whole: where it is, everything it speaks of is on the disk."""
        tables = dict(self._frames)
        if self._outputs:
            tables["outputs"] = self._write_frame(*frames.outputs_to_parquet("outputs", self._outputs))
        packed: Raw | None = None
        if (self.folder / STAGING).is_dir():
            archive = raw.archive_path(self.root, self.id)
            packed = Raw(archive=archive.name, members=raw.pack(self.folder / STAGING, archive))
        record = {
            **self.opened.model_dump(mode="json"),
            **self._facts,
            "finished": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "elapsed_s": time.monotonic() - self._began_s,
            "frames": {name: frame.model_dump(mode="json") for name, frame in tables.items()},
            "notebook": Notebook(why_absent="measured, and not sealed yet").model_dump(mode="json"),
            "raw": packed.model_dump(mode="json") if packed else None,
        }
        sync_folder(self.folder)
        write_whole(self.folder / RECORD, validated(Record, record, RECORD).to_bytes())

    def _write_frame(self, data: bytes, frame: Frame) -> Frame:
        write_whole(self.folder / frame.member, data)
        return frame

    def _require_open(self) -> None:
        if self.state != "measuring":
            raise ValueError(f"round {self.id} is {self.state}: nothing more goes into it; open a new one")

    def __repr__(self) -> str:
        return f"Round({self.opened.variant}, {self.id}, {self.state})"

    def _repr_html_(self) -> str:
        facts = {
            "question": self.opened.question,
            "folder": str(self.folder),
            "samples": ", ".join(f"{name} ({frame.rows} rows)" for name, frame in self._frames.items()) or "none yet",
            "outputs": ", ".join(self._outputs) or "none yet",
        }
        rows = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in facts.items())
        title = html.escape(f"Round {self.opened.variant} / {self.id}: {self.state}")
        return f"<div><p><b>{title}</b></p><table>{rows}</table></div>"


def _mark() -> Path | None:
    """The file that a runner wants the open folder named in, or None: the round seals itself."""
    sealer = os.environ.get("QWEN3LAB_ROUND_SEALED_BY", "")
    if sealer == "":
        return None
    if sealer != "runner":
        raise ValueError(f"QWEN3LAB_ROUND_SEALED_BY={sealer!r}, allowed: runner, or unset")
    mark = os.environ.get("QWEN3LAB_ROUND_MARK", "")
    if not mark:
        raise ValueError("QWEN3LAB_ROUND_SEALED_BY=runner without QWEN3LAB_ROUND_MARK; set it to a file's path")
    return Path(mark).absolute()
