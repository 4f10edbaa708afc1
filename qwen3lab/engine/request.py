"""What a user asks (SamplingParams), what the engine keeps of it (Request), what comes back (Completion)."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Literal

from qwen3lab.engine.prefix import ROOT, Key
from qwen3lab.engine.text import TextStream

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class SamplingParams:
    """How one request's tokens are chosen and when it ends.

    max_tokens      most tokens to generate, at least 1
    temperature     0 is greedy (ties: the lowest id); below MIN_TEMPERATURE counts as 0
    top_k           keep the k likeliest ids; 0, −1, or the vocabulary size and more, keeps all
    top_p           keep the smallest set of ids whose probability reaches top_p, in (0, 1]
    stop            strings that end the request; the text is cut before the match
    stop_token_ids  ids that end the request as EOS does: the id is the last of token_ids
    ignore_eos      go on past the checkpoint's EOS ids (stop_token_ids still end it)
    logprobs        None, or n: log-probabilities of the chosen id and of the n likeliest (n may be 0)
    seed            of this request's own random numbers; None derives one from the engine's seed
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    seed: int | None = None

    # Logits divided by less can overflow float32, and the distribution is a point long before.
    MIN_TEMPERATURE: ClassVar[float] = 1e-4

    def __post_init__(self) -> None:
        _whole("max_tokens", self.max_tokens, least=1)
        if not isinstance(self.temperature, int | float) or not math.isfinite(self.temperature) or self.temperature < 0:
            raise ValueError(f"temperature={self.temperature!r}, allowed: a finite number of at least 0")
        _whole("top_k", self.top_k, least=-1)
        if not isinstance(self.top_p, int | float) or not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p!r}, allowed: over 0 and up to 1")
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, least=0)
        if self.seed is not None:
            _whole("seed", self.seed, least=0)
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if not all(isinstance(s, str) and s for s in stop):
            raise ValueError(f"stop={self.stop!r}, allowed: strings that are not empty")
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))

    @property
    def greedy(self) -> bool:
        return self.temperature < self.MIN_TEMPERATURE or self.top_k == 1


def _whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r}, allowed: a whole number of at least {least}")


@dataclass(frozen=True)
class RequestMetrics:
    """When things happened, in seconds on one monotonic clock (time.perf_counter).

    arrived_s       add_request took it
    queued_s        time it waited before its first step was scheduled (a duration)
    first_token_s   its first token was on the host (None: it produced none)
    finished_s      it ended
    token_times_s   when each token of token_ids was on the host
    num_cached_tokens  prompt tokens whose K and V it found in the prefix cache (0 with enable_prefix_caching off)
    """

    arrived_s: float
    queued_s: float
    first_token_s: float | None
    finished_s: float
    token_times_s: tuple[float, ...]
    num_cached_tokens: int = 0


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural-log probabilities at one position: of the chosen id, and of the n likeliest as (id, logprob) pairs."""

    chosen: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Completion:
    """One request's outcome. `token_ids` holds the id that stopped it; `text` leaves special tokens out."""

    request_id: int
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    error: str | None
    logprobs: tuple[TokenLogprobs, ...] | None
    metrics: RequestMetrics

    def _repr_html_(self) -> str:
        seconds = self.metrics.finished_s - self.metrics.arrived_s
        body = html.escape(self.error or self.text)
        return (
            f"<div><p><b>request {self.request_id}</b> · {len(self.prompt_token_ids)} → {len(self.token_ids)} tokens · "
            f"{seconds:.3f} s · finished by {self.finish_reason}</p><pre>{body}</pre></div>"
        )


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Request:
    """The engine's own record of a request in flight: ints and lists, no tensors."""

    request_id: int
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    arrived_s: float
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    token_times_s: list[float] = field(default_factory=list)
    status: Status = Status.WAITING
    scheduled_s: float | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None
    # KV state: `pages` in order of position; positions [0, num_computed) have their K and V in them.
    pages: list[int] = field(default_factory=list)
    num_computed: int = 0
    # Of these pages the first `num_filed` are in the prefix index, the last of them under `prefix_key`.
    num_filed: int = 0
    prefix_key: Key = ROOT
    num_cached: int | None = None  # tokens found there when it was first admitted
    text: TextStream | None = None  # kept where text is needed as it grows: stop strings, streaming

    @property
    def all_token_ids(self) -> list[int]:
        return self.prompt_token_ids + self.token_ids

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.token_ids)

    @property
    def num_uncomputed(self) -> int:
        """Tokens whose K and V are still to be computed: 1 in steady decode, the whole prompt at first."""
        return self.num_tokens - self.num_computed

    def append(self, token_id: int, logprobs: TokenLogprobs | None, now_s: float) -> None:
        """One more generated id, on the host since `now_s`."""
        self.token_ids.append(token_id)
        self.token_times_s.append(now_s)
        if logprobs is not None:
            self.logprobs.append(logprobs)

    def completion(self, text: str, finished_s: float) -> Completion:
        """What the user gets of a request that has ended."""
        assert self.finish_reason is not None
        started_s = self.scheduled_s if self.scheduled_s is not None else finished_s
        return Completion(
            request_id=self.request_id,
            prompt_token_ids=tuple(self.prompt_token_ids),
            token_ids=tuple(self.token_ids),
            text=text,
            finish_reason=self.finish_reason,
            error=self.error,
            logprobs=tuple(self.logprobs) if self.params.logprobs is not None else None,
            metrics=RequestMetrics(
                arrived_s=self.arrived_s,
                queued_s=started_s - self.arrived_s,
                first_token_s=self.token_times_s[0] if self.token_times_s else None,
                finished_s=finished_s,
                token_times_s=tuple(self.token_times_s),
                num_cached_tokens=self.num_cached or 0,
            ),
        )

    def slice_ids(self, start: int, stop: int) -> list[int]:
        """Ids at positions [start, stop) without copying the whole history."""
        prompt = len(self.prompt_token_ids)
        if start >= prompt:
            return self.token_ids[start - prompt : stop - prompt]
        return self.all_token_ids[start:stop] if stop > prompt else self.prompt_token_ids[start:stop]
