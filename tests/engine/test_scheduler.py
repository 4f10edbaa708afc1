"""Scheduler and pool under random traffic: no page owned twice, none leaked, nobody waits for ever."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qwen3lab.engine.blocks import PADDING_PAGE, BlockPool
from qwen3lab.engine.request import Request, SamplingParams, Status
from qwen3lab.engine.scheduler import Scheduler
from qwen3lab.step import StepKind


def scheduler(pages: int = 8, page_size: int = 4, **limits: int) -> Scheduler:
    bounds = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 64} | limits
    return Scheduler(BlockPool(pages + 1, page_size), **bounds)


def request(request_id: int, prompt: int, max_tokens: int = 8) -> Request:
    return Request(request_id, [7] * prompt, SamplingParams(max_tokens=max_tokens), seed=0, arrived_s=0.0)


class Traffic(RuleBasedStateMachine):
    """Requests arrive, run, end and are aborted at random; the model is a counter."""

    @initialize(
        pages=st.integers(1, 12), page_size=st.integers(1, 5), rows=st.integers(1, 5), budget=st.integers(1, 30),
        model_len=st.integers(2, 40),
    )  # fmt: skip
    def start(self, pages, page_size, rows, budget, model_len):
        self.s = scheduler(pages, page_size, max_num_seqs=rows, max_num_batched_tokens=budget, max_model_len=model_len)
        self.live: dict[int, Request] = {}
        self.count = 0
        self.budget = budget

    @rule(prompt=st.integers(1, 50), max_tokens=st.integers(1, 30))
    def add(self, prompt, max_tokens):
        new = request(self.count, prompt, max_tokens)
        self.count += 1
        fits = prompt < self.s.max_model_len and prompt <= self.s.pool.token_capacity
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
            r.num_computed = row.seq_len
            r.token_ids.append(len(r.token_ids))
            if len(r.token_ids) >= r.params.max_tokens or r.num_tokens >= self.s.token_limit:
                self.s.finish(r, "length")
                del self.live[r.request_id]
        assert plan.kind is StepKind.PREFILL or len(oldest.token_ids) == before + 1

    @invariant()
    def sound(self):
        if hasattr(self, "s"):
            self.s.check_integrity()
            for r in self.live.values():
                assert r.token_ids == list(range(len(r.token_ids))), "a token was lost or delivered twice"
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


def test_the_youngest_yields_and_resumes_with_all_it_had():
    s = scheduler(pages=4, page_size=2)
    old, young = request(0, 3), request(1, 3)
    s.add(old)
    s.add(young)
    for _ in range(2):
        for row in s.schedule().rows:
            row.request.num_computed = row.seq_len
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
