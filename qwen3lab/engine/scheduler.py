"""Which rows run in the next step, and with which pages. Ints and deques; no tensors.

A step is either PREFILL (whole prompts, first come first served, up to a token budget) or DECODE (one token for every
running row). Prompts go first, so a batch fills quickly, but at most `max_num_seqs` of them between two decode steps:
an endless run of short ones cannot stop those who are decoding. When the pool runs dry, the row that arrived last gives
its pages back and is computed anew later, from its prompt and all it has generated: the row that arrived first never
loses its pages, so the queue always advances. Where the pool has a prefix index, a request begins behind the pages that
hold its prefix already.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from qwen3lab.engine.blocks import BlockPool
from qwen3lab.engine.prefix import ROOT, Key
from qwen3lab.engine.request import FinishReason, Request, Status
from qwen3lab.step import StepKind


@dataclass(frozen=True)
class Row:
    """One request's share of a step: compute positions [start, start + num_new); pages cover them all.

    Positions below `write_from` lie in pages that other requests may be reading: what they hold stays as it is.
    """

    request: Request
    start: int
    num_new: int
    write_from: int = 0

    @property
    def seq_len(self) -> int:
        """Keys each of this row's last queries sees: everything up to and including the step's new tokens."""
        return self.start + self.num_new


@dataclass(frozen=True)
class StepPlan:
    kind: StepKind
    rows: tuple[Row, ...]

    @property
    def num_tokens(self) -> int:
        return sum(row.num_new for row in self.rows)


class Scheduler:
    """Owns the queue, the running rows and their pages."""

    def __init__(self, pool: BlockPool, *, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int) -> None:
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in order of arrival
        self._admitted = 0  # requests since the last decode step
        self.num_preemptions = 0

    @property
    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def token_limit(self) -> int:
        """Most tokens (prompt + output) a request can reach. The last one needs no page: nothing reads its K and V."""
        return min(self.max_model_len, self.pool.token_capacity + 1)

    def add(self, request: Request) -> None:
        """Queue a request; ValueError where no schedule could ever serve it."""
        prompt = len(request.prompt_token_ids)
        if prompt >= self.max_model_len:
            raise ValueError(
                f"prompt of {prompt} tokens leaves no room to generate within max_model_len={self.max_model_len}; "
                "shorten it or raise max_model_len"
            )
        if prompt > self.pool.token_capacity:
            raise ValueError(
                f"prompt of {prompt} tokens is larger than the whole KV pool ({self.pool.token_capacity} tokens: "
                f"{self.pool.num_usable} pages of {self.pool.page_size}); shorten it or raise num_kv_blocks"
            )
        self.waiting.append(request)

    def schedule(self) -> StepPlan | None:
        """The next step, its pages allocated; None when there is nothing to do."""
        if not self.running:
            self._admitted = 0
        rows = self._admit()
        if rows:
            return StepPlan(StepKind.PREFILL, tuple(rows))
        self._admitted = 0
        rows = self._advance()
        return StepPlan(StepKind.DECODE, tuple(rows)) if rows else None

    def _admit(self) -> list[Row]:
        """Move requests from the queue's head into the running rows while tokens, rows and pages allow."""
        rows: list[Row] = []
        budget = self.max_num_batched_tokens
        while self.waiting and len(self.running) < self.max_num_seqs and self._admitted < self.max_num_seqs:
            request = self.waiting[0]
            held, key = self._find_prefix(request)
            in_held = len(held) * self.pool.page_size
            # A prompt that is held whole still needs its last token computed: its logits are not kept anywhere.
            start = min(in_held, request.num_tokens - 1)
            tokens = request.num_tokens - start
            # A prompt over the budget gets a step of its own rather than waiting for ever.
            if rows and tokens > budget:
                break
            needed = self.pool.pages_for(request.num_tokens) - len(held)
            if needed + self.pool.num_idle_in(held) > self.pool.num_free:
                break
            self.waiting.popleft()
            self.pool.share(held)
            request.pages = held + self.pool.allocate(needed, after=held[-1] if held else None)
            request.num_computed, request.num_filed, request.prefix_key = start, len(held), key
            if request.num_cached is None:
                request.num_cached = start
            request.status = Status.RUNNING
            self.running.append(request)
            self._admitted += 1
            rows.append(Row(request, start, tokens, write_from=in_held))
            budget -= tokens
        if rows:
            self.running.sort(key=lambda r: r.request_id)
        return rows

    def _find_prefix(self, request: Request) -> tuple[list[int], Key]:
        index = self.pool.index
        return index.find(request.all_token_ids) if index is not None else ([], ROOT)

    def _advance(self) -> list[Row]:
        """One token for each running row, the oldest first; the youngest yield their pages when none are free."""
        rows: list[Row] = []
        for request in list(self.running):
            if request.status is not Status.RUNNING:  # preempted a moment ago, for an older row
                continue
            needed = self.pool.pages_for(request.num_tokens) - len(request.pages)
            while needed > self.pool.num_free and self.running[-1] is not request:
                self._preempt(self.running[-1])
            if needed > self.pool.num_free:
                self._preempt(request)
                break
            request.pages += self.pool.allocate(needed, after=request.pages[-1])
            rows.append(Row(request, start=request.num_computed, num_new=request.num_uncomputed))
        return rows

    def commit(self, row: Row) -> None:
        """The row's step has run: its positions have their K and V, and pages that are full now can be found."""
        request, index, size = row.request, self.pool.index, self.pool.page_size
        request.num_computed = row.seq_len
        while index is not None and (request.num_filed + 1) * size <= request.num_computed:
            start = request.num_filed * size
            ids = request.slice_ids(start, start + size)
            request.prefix_key = index.file(request.pages[request.num_filed], request.prefix_key, ids)
            request.num_filed += 1

    def take_back(self, plan: StepPlan) -> None:
        """The step did not run to its end: its rows go back to the head of the queue, in order, to be computed anew."""
        for row in reversed(plan.rows):
            self._preempt(row.request)

    def _preempt(self, request: Request) -> None:
        self._release(request)
        self.running.remove(request)
        request.status = Status.WAITING
        self.waiting.appendleft(request)
        self.num_preemptions += 1

    def finish(self, request: Request, reason: FinishReason, error: str | None = None) -> None:
        """End a request wherever it is, and free its pages."""
        if request.status is Status.FINISHED:
            raise AssertionError(f"request {request.request_id} finished twice")
        if request.status is Status.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._release(request)
        request.status = Status.FINISHED
        request.finish_reason = reason
        request.error = error

    def _release(self, request: Request) -> None:
        self.pool.free(request.pages)
        request.pages = []
        request.num_computed = request.num_filed = 0
        request.prefix_key = ROOT

    def check_integrity(self) -> None:
        """Walk the queue, the rows and the pool; AssertionError where they disagree."""
        everyone = [*self.running, *self.waiting]
        if len({id(r) for r in everyone}) != len(everyone):
            raise AssertionError("a request is queued or running twice")
        for request in self.waiting:
            if request.status is not Status.WAITING or request.pages or request.num_computed:
                raise AssertionError(f"request {request.request_id} waits with status, pages or K/V of a running one")
        for request in self.running:
            if request.status is not Status.RUNNING:
                raise AssertionError(f"request {request.request_id} runs with status {request.status}")
            if request.num_computed > len(request.pages) * self.pool.page_size:
                raise AssertionError(f"request {request.request_id} has computed more than its pages hold")
        if [r.request_id for r in self.running] != sorted(r.request_id for r in self.running):
            raise AssertionError("running rows are out of order of arrival")
        self.pool.check_integrity(r.pages for r in everyone)
