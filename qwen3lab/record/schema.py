"""What a round's record.json holds. A record states facts and keeps samples' whereabouts; summaries are made later.

The reader knows its version: a record of another version is refused by that version's name, not guessed at. The JSON
Schema of this version is published beside this file as record-1.schema.json, for readers that are not Python.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from qwen3lab.record import canonical

SCHEMA_VERSION = 1
RECORD = "record.json"
EXECUTED: Literal["notebook.ipynb"] = "notebook.ipynb"

Slug = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
RoundId = Annotated[str, Field(pattern=r"^[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Utc = Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")]
FRAME_NAME = r"^[a-z][a-z0-9_]{0,63}$"
# Parts may not begin with a dot, so that no name can climb out of the folder it is extracted to.
RAW_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*$"
FrameName = Annotated[str, Field(pattern=FRAME_NAME)]
RawName = Annotated[str, Field(pattern=RAW_NAME, max_length=200)]


class SchemaError(ValueError):
    """A value that is no record: which field, what it got, what is allowed."""


class Part(BaseModel):
    """Frozen, strict, and closed: an unknown key raises."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Git(Part):
    """The source that ran. `changed`: paths that differ from `commit`; data/ and reports/ are outputs, not source."""

    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")] | None = None
    dirty: bool | None = None
    changed: list[str] = []
    why_absent: str | None = None

    @model_validator(mode="after")
    def _explained(self) -> Git:
        if (self.commit is None) != bool(self.why_absent):
            raise ValueError("a commit, or why_absent: one of the two")
        return self


class Metric(Part):
    """A number's one definition. `of` is what has it (a request, a trial); `aliases` are other tools' names for it."""

    formula: str
    unit: str
    of: str | None = None
    aliases: dict[str, str] = {}


class Verdict(Part):
    """A claim about two arms: ratio = time_B / time_A, below 1 where B is faster. None: there is no such number.

    estimate is as its maker describes it: the other intervals and tests beside the one that decided.
    """

    workload: str
    metric: str
    arm_a: str
    arm_b: str
    ratio: Annotated[float, Field(gt=0)] | None
    ci_low: float | None
    ci_high: float | None
    n_blocks: Annotated[int, Field(ge=0)]
    margin: Annotated[float, Field(ge=0)]
    word: Literal["faster", "slower", "same", "undecided"]
    tokens: Literal["identical", "near-tie", "real", "unchecked", "within-rounding"]
    note: str = ""
    estimate: dict[str, JsonValue] | None = None


class Frame(Part):
    """A table of raw samples: the Parquet member that holds it, and its size."""

    member: str
    rows: Annotated[int, Field(ge=0)]
    columns: list[str]


class Notebook(Part):
    """The notebook a round came from: its stripped source by hash, and the executed copy, a member of the round."""

    source: str | None = None
    source_sha256: Sha256 | None = None
    executed: Literal["notebook.ipynb"] | None = None
    why_absent: str | None = None

    @model_validator(mode="after")
    def _explained(self) -> Notebook:
        if (self.source_sha256 is None or self.executed is None) != bool(self.why_absent):
            raise ValueError("source_sha256 and executed, or why_absent")
        return self


class RawMember(Part):
    bytes: Annotated[int, Field(ge=0)]
    sha256: Sha256


class Raw(Part):
    """What went into the local archive, member by member. Compressed bytes differ with the compressor: not hashed."""

    archive: str
    members: dict[RawName, RawMember]


class Opened(Part):
    """What is known before anything is measured."""

    schema_version: Literal[1]
    round: RoundId
    variant: Slug
    profile: Slug
    question: Annotated[str, Field(min_length=1)]
    parameters: dict[str, JsonValue]
    started: Utc
    git: Git
    argv: list[str]


class Facts(Part):
    """What the notebook tells of its run. workloads: id → sha256; arms, comparison: as their maker describes them."""

    machine: dict[str, JsonValue] = {}
    libraries: dict[str, str] = {}
    workloads: dict[str, Sha256] = {}
    metrics: dict[str, Metric] = {}
    arms: list[dict[str, JsonValue]] = []
    comparison: dict[str, JsonValue] | None = None
    verdicts: list[Verdict] = []
    notes: list[str] = []

    @model_validator(mode="after")
    def _every_verdict_has_its_formula(self) -> Facts:
        missing = sorted({verdict.metric for verdict in self.verdicts} - set(self.metrics))
        if missing:
            raise ValueError(f"verdicts are about {', '.join(missing)}, whose formula is not in metrics")
        return self


class Record(Opened, Facts):
    """record.json, whole. elapsed_s is from a monotonic clock; started and finished are the wall clock's word."""

    finished: Utc
    elapsed_s: Annotated[float, Field(ge=0)]
    frames: dict[FrameName, Frame]
    notebook: Notebook
    raw: Raw | None = None

    @property
    def members(self) -> set[str]:
        """Names of the files that a sealed round consists of, SHA256SUMS aside."""
        executed = {self.notebook.executed} if self.notebook.executed else set()
        return {RECORD} | {frame.member for frame in self.frames.values()} | executed

    def to_bytes(self) -> bytes:
        return canonical.dumps(self.model_dump(mode="json"), RECORD)


P = TypeVar("P", bound=Part)


def validated(kind: type[P], value: object, where: str) -> P:
    """`value` as a `kind`. Raises SchemaError naming every field that does not fit."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        lines = []
        for fault in error.errors():
            place = ".".join(map(str, (where, *fault["loc"])))
            given = "" if fault["type"] in ("missing", "value_error") else f", got {fault['input']!r:.200}"
            lines.append(f"{place}: {fault['msg'].removeprefix('Value error, ')}{given}")
        raise SchemaError("\n".join(lines)) from None


def read_record(data: bytes, where: str) -> Record:
    """The record in `data`. Raises SchemaError; a version this reader does not know is named."""
    try:
        value = canonical.loads(data, where)
    except ValueError as error:
        raise SchemaError(str(error)) from None
    version = value.get("schema_version") if isinstance(value, dict) else None
    if version != SCHEMA_VERSION or isinstance(version, bool):
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        remedy = "it was written by a newer qwen3lab: update this one" if newer else "it is no record of a round"
        raise SchemaError(f"{where}: schema_version={version!r}, readable: {SCHEMA_VERSION}; {remedy}")
    record = validated(Record, value, where)
    try:
        canonical_bytes = record.to_bytes()
    except (ValueError, RecursionError) as error:  # an infinity, a lone surrogate, a thousand brackets: valid JSON, all
        raise SchemaError(f"{where}: {error}") from None
    if canonical_bytes != data:
        raise SchemaError(f"{where}: not in canonical form; records are written by this package only")
    return record


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of record.json in this version."""
    return Record.model_json_schema() | {"$schema": "https://json-schema.org/draft/2020-12/schema"}
