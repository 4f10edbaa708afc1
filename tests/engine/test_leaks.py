"""However a request ends, nothing of it stays: afterwards one request can have the whole pool."""

from __future__ import annotations

import random

import pytest

import checkpoints
from qwen3lab import LLM, SamplingParams

PAGE_SIZE, PAGES = 4, 24


def assert_empty(llm: LLM) -> None:
    """Without looking inside: a request that needs every page is served."""
    assert not llm.has_unfinished
    llm._scheduler.check_integrity()
    whole = [0] * (PAGE_SIZE * PAGES - 1) + [7]
    (completion,) = llm.generate([whole], SamplingParams(max_tokens=1), use_tqdm=False)
    assert completion.token_ids == (8,)


@pytest.mark.parametrize("prefix", [False, True], ids=["plain", "prefix caching"])
def test_two_hundred_requests_ended_every_way(tmp_path, prefix):
    """By length, stop id, EOS, error of its own, refusal, abort while waiting or decoding, a stream left behind, and an
    exception in the caller's own loop; the queue is never empty meanwhile."""
    path = checkpoints.overflowing(tmp_path / "m", at=99)
    (path / "generation_config.json").write_text('{"eos_token_id": [200]}')
    llm = LLM(
        path, block_size=PAGE_SIZE, num_kv_blocks=PAGES, max_num_seqs=6, enable_prefix_caching=prefix, dtype="float32"
    )
    rng = random.Random(0)
    reasons: dict[str, int] = {}
    pending: list[int] = []

    def count(completions):
        for c in completions:
            reasons[c.finish_reason] = reasons.get(c.finish_reason, 0) + 1
            if c.request_id in pending:
                pending.remove(c.request_id)

    for number in range(200):
        start = [rng.randrange(100, 180) for _ in range(rng.randint(1, 20))]
        way = number % 7
        if way == 0:
            pending.append(llm.add_request([*start, 10], SamplingParams(max_tokens=rng.randint(1, 9))))
        elif way == 1:
            pending.append(llm.add_request([*start, 20], SamplingParams(max_tokens=50, stop_token_ids=[23])))
        elif way == 2:
            pending.append(llm.add_request([*start, 196], SamplingParams(max_tokens=50)))
        elif way == 3:
            pending.append(llm.add_request([*start, 95], SamplingParams(max_tokens=50)))
        elif way == 4:
            with pytest.raises(ValueError, match="token id"):
                llm.add_request([*start, 512], SamplingParams())
        elif way == 5:
            stream = llm.stream([*start, 30], SamplingParams(max_tokens=50))
            for _ in range(rng.randint(0, 3)):
                next(stream)
            if rng.random() < 0.5:
                stream.close()
            del stream
        elif pending:
            victim = rng.choice(pending)
            try:
                count([llm.abort(victim)])
            except KeyError:  # it ended while a stream was read; what it came to is handed over by this step
                count(done := llm.step())
                assert victim in [c.request_id for c in done]
        try:
            for _ in range(rng.randint(0, 3)):
                count(llm.step())
                if rng.random() < 0.1:
                    raise RuntimeError("the caller's own")
        except RuntimeError:
            pass
        llm._scheduler.check_integrity()
    while llm.has_unfinished:
        count(llm.step())
    assert not pending
    assert {"length", "stop", "error", "abort"} <= reasons.keys(), reasons
    assert min(reasons.values()) >= 5, reasons
    assert_empty(llm)


def test_a_request_over_the_pool_blocks_nobody_in_either_order(markov):
    """Larger than the pool: refused. Fitting, but not with its output: ends by length."""
    over, fits, short = [1] * (PAGE_SIZE * PAGES + 1), [1] * (PAGE_SIZE * PAGES - 3) + [5], [40]
    for prompts in ([over, short], [short, over], [fits, short, over], [over, fits, short, fits]):
        llm = LLM(markov, block_size=PAGE_SIZE, num_kv_blocks=PAGES)
        done = llm.generate(prompts, SamplingParams(max_tokens=20, ignore_eos=True), use_tqdm=False)
        for prompt, completion in zip(prompts, done, strict=True):
            if prompt is over:
                assert completion.finish_reason == "error"
                assert "larger than the whole KV pool" in completion.error
            else:
                length = min(20, PAGE_SIZE * PAGES + 1 - len(prompt))
                assert completion.token_ids == tuple(prompt[-1] + 1 + i for i in range(length))
                assert completion.finish_reason == "length"
        assert_empty(llm)
