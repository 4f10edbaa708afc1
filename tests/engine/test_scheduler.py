"""Scheduler and pool under random traffic: no page owned twice, none leaked, nobody waits for ever."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qwen3lab.engine.blocks import PADDING_PAGE, BlockPool
from qwen3lab.engine.prefix import PrefixIndex
from qwen3lab.engine.request import Request, SamplingParams, Status
from qwen3lab.engine.scheduler import Scheduler
from qwen3lab.step import StepKind


def scheduler(pages: int = 8, page_size: int = 4, caching: bool = False, **limits: int) -> Scheduler:
    bounds = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 64} | limits
    return Scheduler(BlockPool(pages + 1, page_size, PrefixIndex(page_size) if caching else None), **bounds)


def request(request_id: int, prompt: int | list[int], max_tokens: int = 8) -> Request:
    ids = [7] * prompt if isinstance(prompt, int) else prompt
    return Request(request_id, ids, SamplingParams(max_tokens=max_tokens), seed=0, arrived_s=0.0)


class Traffic(RuleBasedStateMachine):
    """Requests arrive, run, end and are aborted at random; the model is a counter.

    A page's slot remembers the ids up to the position whose K and V it holds, as its K and V would: what a step reads
    must have been written by a step, for exactly these ids, whoever wrote it.
    """

    @initialize(
        pages=st.integers(1, 12), page_size=st.integers(1, 5), rows=st.integers(1, 5), budget=st.integers(1, 30),
        model_len=st.integers(2, 40), caching=st.booleans(),
    )  # fmt: skip
    def start(self, pages, page_size, rows, budget, model_len, caching):
        limits = {"max_num_seqs": rows, "max_num_batched_tokens": budget, "max_model_len": model_len}
        self.s = scheduler(pages, page_size, caching, **limits)
        self.slots: dict[tuple[int, int], list[int]] = {}
        self.live: dict[int, Request] = {}
        self.count = 0
        self.budget = budget

    @rule(length=st.integers(1, 50), differs_at=st.integers(0, 60), max_tokens=st.integers(1, 30))
    def add(self, length, differs_at, max_tokens):
        ids = list(range(length))  # what the model generates continues it, so that prefixes of all lengths are shared
        if differs_at < length:
            ids[differs_at] = 99
        new = request(self.count, ids, max_tokens)
        self.count += 1
        fits = length < self.s.max_model_len and length <= self.s.pool.token_capacity
        if fits:
            self.s.add(new)
            self.live[new.request_id] = new
        else:
            with pytest.raises(ValueError):
                self.s.add(new)

    @rule(data=st.data())
    @precondition(lambda self: self.live)
    def abort(self, data):
        victim = self.live.pop(data.draw(st.sampled_from(sorted(self.live))))
        self.s.finish(victim, "abort")

    @rule()
    @precondition(lambda self: self.live)
    def step(self):
        oldest = self.live[min(self.live)]
        before = len(oldest.token_ids)
        plan = self.s.schedule()
        assert plan is not None, "work is waiting and nothing was scheduled"
        ids = [row.request.request_id for row in plan.rows]
        assert ids == sorted(set(ids))
        assert len(plan.rows) <= self.s.max_num_seqs
        if plan.kind is StepKind.PREFILL:
            assert plan.num_tokens <= self.budget or len(plan.rows) == 1
        else:
            assert all(row.num_new == 1 for row in plan.rows)
            assert oldest.request_id in ids, "the oldest request lost its turn"
        for row in plan.rows:
            r = row.request
            assert row.start == r.num_computed
            assert row.seq_len == r.num_tokens
            assert self.s.pool.pages_for(row.seq_len) == len(r.pages)
            self.read_and_write(row)
            self.s.commit(row)
            r.token_ids.append(r.num_tokens)
            if len(r.token_ids) >= r.params.max_tokens or r.num_tokens >= self.s.token_limit:
                self.s.finish(r, "length")
                del self.live[r.request_id]
        assert plan.kind is StepKind.PREFILL or len(oldest.token_ids) == before + 1

    def read_and_write(self, row):
        size, ids = self.s.pool.page_size, row.request.all_token_ids
        assert row.request.num_cached is not None and row.start < row.seq_len
        for at in range(row.start, row.seq_len):
            if at >= row.write_from:
                self.slots[row.request.pages[at // size], at % size] = ids[: at + 1]
        for at in range(row.seq_len):
            held = self.slots.get((row.request.pages[at // size], at % size))
            assert held == ids[: at + 1], "K and V of other ids, or of none"

    @invariant()
    def sound(self):
        if hasattr(self, "s"):
            self.s.check_integrity()
            for r in self.live.values():
                prompt = len(r.prompt_token_ids)
                assert r.token_ids == list(range(prompt, r.num_tokens)), "a token was lost or delivered twice"
                assert PADDING_PAGE not in r.pages

    def teardown(self):
        if not hasattr(self, "s"):
            return
        for _ in range(5000):  # everything left must come to its end
            if not self.live:
                break
            self.step()
        assert not self.live, "requests that never end"
        assert self.s.pool.num_free == self.s.pool.num_usable


Traffic.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestTraffic = Traffic.TestCase


def test_prompts_come_in_order_and_up_to_the_budget():
    s = scheduler(pages=30, max_num_batched_tokens=10)
    for i, length in enumerate((4, 6, 1, 30)):
        s.add(request(i, length))
    first, second = s.schedule(), s.schedule()
    assert [r.request.request_id for r in first.rows] == [0, 1]
    assert [r.request.request_id for r in second.rows] == [2]
    alone = s.schedule()  # over the budget: a step of its own
    assert [r.request.request_id for r in alone.rows] == [3]
    assert alone.num_tokens == 30


def test_a_large_request_at_the_head_is_not_overtaken():
    s = scheduler(pages=4, page_size=4)
    s.add(request(0, 12))
    s.schedule()
    s.add(request(1, 13))  # does not fit beside the first
    s.add(request(2, 1))  # would
    assert s.schedule().kind is StepKind.DECODE
    assert [r.request_id for r in s.waiting] == [1, 2]


def test_an_endless_run_of_short_requests_does_not_stop_the_decoding_ones():
    s = scheduler(pages=30, max_num_seqs=4)
    s.add(request(0, 3))
    (first,) = s.schedule().rows
    s.commit(first)
    first.request.token_ids.append(1)
    since_decode = 0
    for i in range(1, 40):  # each arrives as the last one ends with its first token
        s.add(request(i, 2, max_tokens=1))
        plan = s.schedule()
        for row in plan.rows:
            s.commit(row)
            row.request.token_ids.append(1)
            if row.request.request_id:
                s.finish(row.request, "length")
        since_decode = 0 if plan.kind is StepKind.DECODE else since_decode + 1
        assert since_decode <= 4
    assert len(first.request.token_ids) >= 8


def test_a_step_that_was_interrupted_is_run_again_in_order():
    s = scheduler(pages=30)
    for i in range(3):
        s.add(request(i, 3))
    plan = s.schedule()
    s.take_back(plan)
    s.check_integrity()
    assert s.pool.num_free == s.pool.num_usable
    assert s.schedule() == plan


def test_the_youngest_yields_and_resumes_with_all_it_had():
    s = scheduler(pages=4, page_size=2)
    old, young = request(0, 3), request(1, 3)
    s.add(old)
    s.add(young)
    for _ in range(2):
        for row in s.schedule().rows:
            s.commit(row)
            row.request.token_ids.append(1)
    plan = s.schedule()  # old needs a third page and the pool has none
    assert [r.request for r in plan.rows] == [old]
    assert young.status is Status.WAITING
    assert (young.pages, young.num_computed, len(young.token_ids)) == ([], 0, 2)
    assert s.num_preemptions == 1
    s.finish(old, "abort")
    (resumed,) = s.schedule().rows
    assert (resumed.request, resumed.start, resumed.num_new) == (young, 0, 5)


@pytest.mark.parametrize("pages", [[PADDING_PAGE], [3]], ids=["the padding page", "a free page"])
def test_the_pool_refuses_to_free_what_nobody_owns(pages):
    with pytest.raises(AssertionError, match="freed while it is"):
        BlockPool(5, 4).free(pages)


def test_integrity_finds_a_leak_and_a_double_owner():
    pool = BlockPool(5, 4)
    pages = pool.allocate(2)
    with pytest.raises(AssertionError, match="leaked or owned twice"):
        pool.check_integrity([])
    with pytest.raises(AssertionError, match="leaked or owned twice"):
        pool.check_integrity([pages, pages[:1]])
    pool.check_integrity([pages])
