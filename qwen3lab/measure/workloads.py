"""What is asked of an engine: frozen, seeded requests stored as token ids, and the reader that checks their hash.

A file of data/workloads/<profile>/<id>.json keeps, per request, the text, the small model's ids of it, how many tokens
to produce and at which engine step it arrives. `load` refuses a file in which a byte has changed. Both arms of a
comparison get the same ids, lengths and stop rules: greedy, and past EOS to exactly max_tokens.

A checkpoint with another tokenizer gets the same texts through its own (tasks through its chat template, where it has
one), cut to the same token counts where the length is the point; the hash then is that of its own ids. This file only
reads; `recipes` writes.
"""

from __future__ import annotations

import hashlib
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qwen3lab.model.tokenizer import Tokenizer

IDS = (
    "w1_single_decode", "w2_long_prefill", "w3_batch_throughput", "w4_repetitive_batch",
    "w5_code_edit", "w6_decode_stall", "w7_quote_extract", "w8_saturation",
)  # fmt: skip
PROFILES = ("smoke", "full")
ROOT = Path(__file__).resolve().parents[2] / "data" / "workloads"
SCHEMA = 1
SAMPLING = {"temperature": 0, "ignore_eos": True}


class WorkloadError(ValueError):
    """A workload that cannot be used: which, why, and the remedy."""


@dataclass(frozen=True)
class WorkloadRequest:
    """One request: greedy, exactly `max_tokens` new tokens, arriving when `inject_at_step` engine steps have run."""

    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    inject_at_step: int = 0


@dataclass(frozen=True)
class Workload:
    """Requests with their identity.

    sha256     over canonical JSON of ids, lengths, output lengths, arrival steps and the sampling rule
    tokenizer  sha256 of the tokenizer.json that made the ids; "" where they were given as ids
    """

    id: str
    profile: str
    requests: tuple[WorkloadRequest, ...]
    sha256: str
    tokenizer: str

    @classmethod
    def of(cls, id: str, profile: str, requests: Sequence[WorkloadRequest], tokenizer: str = "") -> Workload:
        """A workload of your own; the hash is computed here."""
        if not requests:
            raise WorkloadError(f"workload {id}: no requests")
        for i, request in enumerate(requests):
            if not request.prompt_token_ids or request.max_tokens < 1 or request.inject_at_step < 0:
                raise WorkloadError(
                    f"workload {id}, request {i}: {len(request.prompt_token_ids)} prompt tokens, max_tokens="
                    f"{request.max_tokens}, inject_at_step={request.inject_at_step}; allowed: ≥ 1, ≥ 1, ≥ 0"
                )
        return cls(id, profile, tuple(requests), identity(requests), tokenizer)

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        """The ids of each request's prompt."""
        return [request.prompt_token_ids for request in self.requests]

    @property
    def prompt_tokens(self) -> int:
        return sum(len(r.prompt_token_ids) for r in self.requests)

    @property
    def output_tokens(self) -> int:
        return sum(r.max_tokens for r in self.requests)

    def _repr_html_(self) -> str:
        return (
            f"<p><b>{html.escape(self.id)}</b> ({html.escape(self.profile)}) · {len(self.requests)} requests · "
            f"{self.prompt_tokens:,} → {self.output_tokens:,} tokens · <code>{self.sha256[:12]}</code></p>"
        )


def load(id: str, profile: str = "smoke", model: str | Path | None = None, root: Path = ROOT) -> Workload:
    """The workload `id`, verified, as ids for `model` (a directory or a hub id; None: the ids as they are stored).

    Raises WorkloadError for an unknown id or profile, a missing or altered file, or a text too short for `model`.
    """
    if id not in IDS:
        raise WorkloadError(f"workload {id!r} is not known, allowed: {', '.join(IDS)}")
    if profile not in PROFILES:
        raise WorkloadError(f"profile {profile!r} is not known, allowed: {', '.join(PROFILES)}")
    document = read(root / profile / f"{id}.json")
    stored = tuple(
        WorkloadRequest(tuple(r["prompt_token_ids"]), r["max_tokens"], r["inject_at_step"])
        for r in document["requests"]
    )
    if model is None:
        return Workload.of(id, profile, stored, document["tokenizer_sha256"])
    path = _checkpoint_dir(model)
    tokenizer_file = path / "tokenizer.json"
    if not tokenizer_file.exists():
        _check_vocabulary(id, stored, path)
        return Workload.of(id, profile, stored, document["tokenizer_sha256"])
    tokenizer_sha256 = file_sha256(tokenizer_file)
    if tokenizer_sha256 == document["tokenizer_sha256"]:
        return Workload.of(id, profile, stored, tokenizer_sha256)
    from qwen3lab.model.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_dir(path)
    own = tuple(
        WorkloadRequest(_encode(f"workload {id}, request {i}", r, tokenizer), r["max_tokens"], r["inject_at_step"])
        for i, r in enumerate(document["requests"])
    )
    return Workload.of(id, profile, own, tokenizer_sha256)


def canonical(value: Any) -> bytes:
    """RFC 8785 JSON: one byte form for one content, whatever the key order."""
    import rfc8785  # here, so that a worker's interpreter can do without it

    return bytes(rfc8785.dumps(value))


def identity(requests: Sequence[WorkloadRequest]) -> str:
    """sha256 of what makes two runs the same question."""
    content = {
        "sampling": SAMPLING,
        "requests": [
            {
                "prompt_token_ids": list(r.prompt_token_ids),
                "prompt_tokens": len(r.prompt_token_ids),
                "max_tokens": r.max_tokens,
                "inject_at_step": r.inject_at_step,
            }
            for r in requests
        ],
    }
    return hashlib.sha256(canonical(content)).hexdigest()


def serialise(document: dict[str, Any]) -> bytes:
    """The one byte form of a workload document: canonical JSON with the hash of its own content, and a newline."""
    content = {key: value for key, value in document.items() if key != "document_sha256"}
    digest = hashlib.sha256(canonical(content)).hexdigest()
    return canonical({**content, "document_sha256": digest}) + b"\n"


def read(path: Path) -> dict[str, Any]:
    """A workload document, refused unless every byte is as it was written and the ids give the stored identity."""
    remedy = "restore it from git, or write all anew with qwen3lab.measure.recipes.write_all()"
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise WorkloadError(f"{path}: no such workload file; {remedy}") from None
    try:
        document = json.loads(raw)
        altered = serialise(document) != raw
    except (ValueError, AttributeError) as error:
        raise WorkloadError(f"{path}: not a workload file ({error}); {remedy}") from None
    if altered:
        raise WorkloadError(f"{path}: its content does not match its hash, so a byte was changed; {remedy}")
    if document.get("schema") != SCHEMA:
        raise WorkloadError(f"{path}: schema {document.get('schema')!r}, this version reads {SCHEMA}; {remedy}")
    requests = [
        WorkloadRequest(tuple(r["prompt_token_ids"]), r["max_tokens"], r["inject_at_step"])
        for r in document["requests"]
    ]
    if identity(requests) != document["sha256"]:
        raise WorkloadError(f"{path}: its token ids do not match sha256={document['sha256']}; {remedy}")
    return dict(document)


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _encode(what: str, request: dict[str, Any], tokenizer: Tokenizer) -> tuple[int, ...]:
    """Another tokenizer's ids for a stored request: a task as a message, plain text cut to the stored length."""
    if request["message"] is not None:
        if tokenizer._chat_template is None:  # a base model: the message is its prompt
            return tuple(tokenizer.encode(request["message"]))
        messages = [{"role": "user", "content": request["message"]}]
        return tuple(tokenizer.encode(tokenizer.apply_chat_template(messages, enable_thinking=False)))
    ids = tokenizer.encode(request["text"])
    wanted = len(request["prompt_token_ids"])
    if len(ids) < wanted:
        raise WorkloadError(
            f"{what}: its text gives {len(ids)} tokens with this checkpoint's tokenizer, and {wanted} are wanted; "
            "write the workloads with more text (recipes.CHARS_PER_TOKEN)"
        )
    return tuple(ids[:wanted])


def _checkpoint_dir(model: str | Path) -> Path:
    path = Path(model)
    if path.is_dir():
        return path
    from qwen3lab.model.weights import resolve  # a hub id, or an error that says what is missing

    return Path(resolve(model))


def _check_vocabulary(id: str, requests: Sequence[WorkloadRequest], path: Path) -> None:
    from qwen3lab.model_config import ModelConfig

    vocab_size = ModelConfig.from_dir(path).vocab_size
    largest = max(max(r.prompt_token_ids) for r in requests)
    if largest >= vocab_size:
        raise WorkloadError(
            f"workload {id}: holds token id {largest}, and {path.name} has no tokenizer.json and {vocab_size} ids; "
            "put a tokenizer beside the checkpoint"
        )
