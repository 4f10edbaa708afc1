"""A request read as it grows: the pieces join to the completion, and closing at any moment leaves nothing behind."""

from __future__ import annotations

import gc
import itertools
import random
from pathlib import Path

import pytest

import checkpoints
from qwen3lab import LLM, SamplingParams

NANO = Path(__file__).parents[2] / "data" / "nano"
PROMPT = "def mean(values):\n"


@pytest.fixture(scope="module")
def nano() -> LLM:
    return LLM(NANO, dtype="float32", num_kv_blocks=64, block_size=16)


@pytest.fixture(scope="module")
def llm(markov) -> LLM:
    return LLM(markov, num_kv_blocks=32, block_size=8)


def assert_nothing_left(llm: LLM) -> None:
    llm._scheduler.check_integrity()
    assert not llm.has_unfinished
    assert llm._scheduler.pool.num_free == llm._scheduler.pool.num_usable


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_the_pieces_are_the_completion(nano, temperature):
    params = SamplingParams(max_tokens=60, temperature=temperature, seed=4, logprobs=1)
    (whole,) = nano.generate(PROMPT, params, use_tqdm=False)
    stream = nano.stream(PROMPT, params)
    pieces = list(stream)
    assert len(pieces) == len(whole.token_ids)
    assert tuple(itertools.chain.from_iterable(p.token_ids for p in pieces)) == whole.token_ids
    assert "".join(p.text for p in pieces) == whole.text == stream.completion.text
    assert tuple(itertools.chain.from_iterable(p.logprobs for p in pieces)) == whole.logprobs
    assert stream.completion.finish_reason == whole.finish_reason
    assert not any("\ufffd" in p.text for p in pieces)
    assert_nothing_left(nano)


def test_ids_come_as_soon_as_they_are_there(llm):
    stream = llm.stream([5], SamplingParams(max_tokens=10))
    for expected in (6, 7, 8):
        assert next(stream).token_ids == (expected,)
        assert llm.traces[-1].kv_tokens == expected - 5
    stream.close()
    assert stream.completion.finish_reason == "abort"
    assert list(stream) == []
    assert_nothing_left(llm)


def test_a_stop_string_is_never_shown_even_in_part(nano):
    (whole,) = nano.generate(PROMPT, SamplingParams(max_tokens=60), use_tqdm=False)
    rng = random.Random(0)
    for _ in range(12):
        start = rng.randrange(1, len(whole.text) - 8)
        stop = whole.text[start : start + rng.randint(2, 8)]
        params = SamplingParams(max_tokens=60, stop=stop)
        shown = ""
        stream = nano.stream(PROMPT, params)
        for piece in stream:
            shown += piece.text
            assert whole.text[: whole.text.find(stop)].startswith(shown), (
                "something was shown that had to be taken back"
            )
        assert shown == stream.completion.text == whole.text[: whole.text.find(stop)]
        assert stream.completion.finish_reason == "stop"


def test_closing_at_any_moment_frees_everything(llm):
    for read in range(6):
        with llm.stream([5], SamplingParams(max_tokens=5)) as stream:
            assert [next(stream).token_ids[0] for _ in range(min(read, 5))] == [6, 7, 8, 9, 10][:read]
        assert stream.completion is not None
        assert_nothing_left(llm)


def test_a_stream_nobody_holds_any_more_ends_itself(llm):
    llm.stream([5], SamplingParams(max_tokens=50))
    gc.collect()
    assert_nothing_left(llm)
    for _ in llm.stream([5], SamplingParams(max_tokens=50)):
        break
    gc.collect()
    assert_nothing_left(llm)


def test_streams_and_stepped_requests_share_the_engine(llm):
    first = llm.stream([5], SamplingParams(max_tokens=4))
    stepped = llm.add_request([100], SamplingParams(max_tokens=2))
    second = llm.stream([200], SamplingParams(max_tokens=6))
    with pytest.raises(RuntimeError, match=r"add_request\(\) or stream\(\) are in flight"):
        llm.generate([[1]], use_tqdm=False)
    assert [p.token_ids[0] for p in first] == [6, 7, 8, 9]
    assert llm.has_unfinished
    (done,) = llm.step()  # it ended while `first` was read
    assert (done.request_id, done.token_ids) == (stepped, (101, 102))
    assert [p.token_ids[0] for p in second] == list(range(201, 207))
    assert_nothing_left(llm)


def test_abort_from_outside_ends_the_stream(llm):
    stream = llm.stream([5], SamplingParams(max_tokens=50))
    next(stream)
    completion = llm.abort(stream.request_id)
    assert list(stream) == []
    assert stream.completion is completion
    assert_nothing_left(llm)


def test_a_bad_prompt_is_refused_at_once_and_an_error_is_raised(llm, tmp_path):
    with pytest.raises(ValueError, match="empty"):
        llm.stream([])
    bad = LLM(checkpoints.overflowing(tmp_path / "m", at=7), num_kv_blocks=8)
    stream = bad.stream([5], SamplingParams(max_tokens=9))
    assert [next(stream).token_ids, next(stream).token_ids] == [(6,), (7,)]
    with pytest.raises(RuntimeError, match="non-finite logits"):
        next(stream)
    assert_nothing_left(bad)


def test_a_checkpoint_without_a_tokenizer_streams_ids(llm):
    assert [(p.token_ids, p.text) for p in llm.stream([5], SamplingParams(max_tokens=2))] == [((6,), ""), ((7,), "")]
