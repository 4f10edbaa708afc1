"""The engine as a user meets it: stops and lengths, bad requests beside good ones, a step at a time, aborts."""

from __future__ import annotations

import re
import threading

import pytest

import checkpoints
from qwen3lab import LLM, SamplingParams

VOCAB = checkpoints.VOCAB


@pytest.fixture(scope="module")
def llm(markov):
    return LLM(markov, num_kv_blocks=64, block_size=8)


def chain(start: int, count: int) -> tuple[int, ...]:
    return tuple((start + i) % VOCAB for i in range(count))


def test_one_completion_per_prompt_in_order(llm):
    starts = [5, 300, 77, 12]
    completions = llm.generate([[s] for s in starts], [SamplingParams(max_tokens=n) for n in (7, 1, 30, 12)], False)
    assert [c.token_ids for c in completions] == [chain(s + 1, n) for s, n in zip(starts, (7, 1, 30, 12), strict=True)]
    assert [c.prompt_token_ids for c in completions] == [(s,) for s in starts]


def test_a_flat_list_of_ids_is_one_prompt(llm):
    (completion,) = llm.generate([1, 2, 3], SamplingParams(max_tokens=2), use_tqdm=False)
    assert completion.token_ids == (4, 5)


@pytest.mark.parametrize("prompts", [None, 5, 2.5])
def test_prompts_of_no_kind_say_what_is_allowed(llm, prompts):
    with pytest.raises(ValueError, match=f"prompts={prompts}, allowed: a string"):
        llm.generate(prompts, use_tqdm=False)


def test_no_prompts_is_no_completions(llm):
    assert llm.generate([], SamplingParams(), use_tqdm=False) == []


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [53, 60]}, 60, 53),
        ({"eos_token_id": [60, 53]}, None, 53),
        ({"eos_token_id": 60}, 53, 60),
        (None, 53, 53),
        ({}, [58, 55], 55),
    ],
)
def test_every_eos_id_of_generation_config_stops(tmp_path, generation, config, expected):
    path = checkpoints.markov(tmp_path / "m", eos_token_id=config, generation=generation)
    llm = LLM(path, num_kv_blocks=20)
    (stopped,) = llm.generate([[50]], SamplingParams(max_tokens=100), use_tqdm=False)
    assert (stopped.token_ids, stopped.finish_reason) == (tuple(range(51, expected + 1)), "stop")
    (ignoring,) = llm.generate([[50]], SamplingParams(max_tokens=40, ignore_eos=True), use_tqdm=False)
    assert (ignoring.token_ids, ignoring.finish_reason) == (chain(51, 40), "length")


def test_stop_token_ids_end_even_when_eos_is_ignored(llm):
    (completion,) = llm.generate([[50]], SamplingParams(max_tokens=40, ignore_eos=True, stop_token_ids=[55]), False)
    assert (completion.token_ids, completion.finish_reason) == ((51, 52, 53, 54, 55), "stop")


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        ([], "empty"),
        ([VOCAB], f"token id {VOCAB}, allowed: 0 to {VOCAB - 1}"),
        ([3, -1], "token id -1"),
        ([1] * 8192, "max_model_len=8192"),
        ([1] * 600, "larger than the whole KV pool"),
        ("text", "no tokenizer.json"),
        ([1, 2.5], r"the prompt is [1, 2.5], allowed: a string, or a sequence of token ids"),
        (["a"], "the prompt is ['a'], allowed"),
        (None, "the prompt is None, allowed"),
    ],
    ids=[
        "empty",
        "id over the vocabulary",
        "negative id",
        "as long as the model",
        "larger than the pool",
        "text",
        "no whole number",
        "strings in strings",
        "nothing",
    ],
)
def test_a_bad_request_fails_alone(llm, prompt, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        llm.add_request(prompt, SamplingParams())
    before, bad, after = llm.generate([[9], prompt, [200]], SamplingParams(max_tokens=3), use_tqdm=False)
    assert (before.token_ids, after.token_ids) == ((10, 11, 12), (201, 202, 203))
    assert bad.finish_reason == "error"
    assert bad.token_ids == ()
    assert told in bad.error


@pytest.mark.parametrize(
    "bad",
    [
        {"max_tokens": 0}, {"max_tokens": 1.5}, {"temperature": -1}, {"temperature": float("nan")},
        {"top_k": -2}, {"top_p": 0.0}, {"top_p": 1.5}, {"stop": [""]}, {"logprobs": -1}, {"seed": -4},
    ],
    ids=str,
)  # fmt: skip
def test_sampling_params_refuse_what_makes_no_sense(bad):
    (name,) = bad
    with pytest.raises(ValueError, match=name):
        SamplingParams(**bad)


def test_a_stop_id_outside_the_vocabulary_is_refused(llm):
    with pytest.raises(ValueError, match="stop_token_ids holds token id 517, allowed: 0 to 511"):
        llm.add_request([1], SamplingParams(stop_token_ids=[517]))


def test_an_unknown_option_raises_with_the_nearest_name(markov):
    with pytest.raises(TypeError, match="unknown option 'block_sise'; did you mean 'block_size'"):
        LLM(markov, block_sise=8)


def test_an_environment_switch_mirrors_an_option_and_the_option_wins(markov, monkeypatch):
    monkeypatch.setenv("QWEN3LAB_BLOCK_SIZE", "4")
    assert LLM(markov, num_kv_blocks=8).facts.page_size == 4
    assert LLM(markov, num_kv_blocks=8, block_size=2).facts.page_size == 2
    monkeypatch.setenv("QWEN3LAB_BLOCK_SIZE", "four")
    with pytest.raises(ValueError, match="QWEN3LAB_BLOCK_SIZE='four'"):
        LLM(markov, num_kv_blocks=8)


def test_a_request_that_fits_but_cannot_finish_ends_by_length(markov):
    llm = LLM(markov, block_size=4, num_kv_blocks=5)  # 20 tokens, and one more that needs no page
    long, short = llm.generate([list(range(10)), [40]], SamplingParams(max_tokens=100, ignore_eos=True), use_tqdm=False)
    assert (long.finish_reason, long.token_ids) == ("length", chain(10, 11))
    assert (short.finish_reason, short.token_ids) == ("length", chain(41, 20))


def test_max_model_len_ends_by_length(markov):
    llm = LLM(markov, max_model_len=16, num_kv_blocks=32)
    (completion,) = llm.generate([list(range(10))], SamplingParams(max_tokens=100), use_tqdm=False)
    assert (completion.finish_reason, len(completion.token_ids)) == ("length", 6)


def test_requests_may_arrive_in_mid_flight(llm):
    first = llm.add_request([10], SamplingParams(max_tokens=12))
    for _ in range(4):
        llm.step()
    second = llm.add_request([100, 101], SamplingParams(max_tokens=3))
    done = {}
    while llm.has_unfinished:
        done |= {c.request_id: c for c in llm.step()}
    assert done[first].token_ids == chain(11, 12)
    assert done[second].token_ids == chain(102, 3)
    assert llm.step() == []


def test_abort_frees_everything_wherever_the_request_is(markov):
    llm = LLM(markov, num_kv_blocks=8, block_size=4, max_num_seqs=1)
    running = llm.add_request([1, 2, 3], SamplingParams(max_tokens=50))
    waiting = llm.add_request([9], SamplingParams(max_tokens=50))
    llm.step()
    llm.step()
    aborted = llm.abort(running)
    assert (aborted.finish_reason, aborted.token_ids) == ("abort", (4, 5))
    assert llm.abort(waiting).token_ids == ()
    assert not llm.has_unfinished
    with pytest.raises(KeyError):
        llm.abort(running)
    llm._scheduler.check_integrity()
    (whole,) = llm.generate([[0] * 31 + [7]], SamplingParams(max_tokens=1), use_tqdm=False)  # needs every page
    assert whole.token_ids == (8,)


def test_an_interrupt_leaves_the_engine_ready(markov, monkeypatch):
    llm = LLM(markov, num_kv_blocks=16)
    real, calls = llm._runner.run, threading.local()
    calls.n = 0

    def interrupted(plan):
        calls.n += 1
        if calls.n == 3:
            raise KeyboardInterrupt
        return real(plan)

    monkeypatch.setattr(llm._runner, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[1], [2]], SamplingParams(max_tokens=9), use_tqdm=False)
    assert not llm.has_unfinished
    llm._scheduler.check_integrity()
    (good,) = llm.generate([[5]], SamplingParams(max_tokens=2), use_tqdm=False)
    assert good.token_ids == (6, 7)


def test_times_are_ordered_and_one_per_token(llm):
    for c in llm.generate([[1], [2], [3]], SamplingParams(max_tokens=5), use_tqdm=False):
        m = c.metrics
        assert len(m.token_times_s) == len(c.token_ids) == 5
        assert m.arrived_s <= m.first_token_s == m.token_times_s[0]
        assert list(m.token_times_s) == sorted(m.token_times_s)
        assert m.token_times_s[-1] <= m.finished_s
        assert m.queued_s >= 0


def test_traces_tell_what_ran(markov):
    llm = LLM(markov, num_kv_blocks=16)
    llm.generate([[1, 2, 3], [4]], SamplingParams(max_tokens=3), use_tqdm=False)
    assert [(t.kind.value, t.rows, t.tokens, t.kv_tokens, t.mode) for t in llm.traces] == [
        ("prefill", 2, 4, 4, "eager"),
        ("decode", 2, 2, 6, "eager"),
        ("decode", 2, 2, 8, "eager"),
    ]


def test_equal_logits_go_to_the_lowest_id(tmp_path):
    successor = [(t + 1) % VOCAB for t in range(VOCAB)]
    path = checkpoints.markov(tmp_path / "m", successor)
    from safetensors.torch import load_file, save_file

    tensors = load_file(path / "model.safetensors")
    tensors["lm_head.weight"][11] = tensors["lm_head.weight"][301]  # after 300, ids 11 and 301 tie
    save_file(tensors, path / "model.safetensors")
    (completion,) = LLM(path, num_kv_blocks=8).generate([[300]], SamplingParams(max_tokens=1), use_tqdm=False)
    assert completion.token_ids == (11,)


def test_non_finite_logits_end_that_request_only(tmp_path):
    llm = LLM(checkpoints.overflowing(tmp_path / "m", at=99), num_kv_blocks=16)
    for params in (SamplingParams(max_tokens=4), SamplingParams(max_tokens=4, temperature=1.0, top_k=1)):
        bad, good = llm.generate([[99], [5]], params, use_tqdm=False)
        assert bad.finish_reason == "error"
        assert "non-finite logits" in bad.error
        assert good.token_ids == (6, 7, 8, 9)


def test_repr_html_escapes():
    from qwen3lab.engine.request import Completion, RequestMetrics

    c = Completion(0, (1,), (2,), "<script>", "stop", None, None, RequestMetrics(0, 0, 0, 0, (0,)))
    assert "<script>" not in c._repr_html_()
