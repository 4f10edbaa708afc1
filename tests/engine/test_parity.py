"""Greedy tokens in fp32 equal transformers' exactly, whatever the batch, the page size, the pool or the form."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch

import checkpoints
from oracle import Oracle
from qwen3lab import LLM, SamplingParams

NANO = Path(__file__).parents[2] / "data" / "nano"


def mixed_prompts(count: int, vocab: int, longest: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(vocab) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def generated(path: Path, prompts: list[list[int]], max_tokens: int, **options) -> list[list[int]]:
    llm = LLM(path, dtype="float32", **({"num_kv_blocks": 600, "block_size": 16} | options))
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    completions = llm.generate(prompts, params, use_tqdm=False)
    llm._scheduler.check_integrity()
    assert llm._scheduler.pool.num_free == llm._scheduler.pool.num_usable, "pages leaked"
    assert all(c.finish_reason == "length" for c in completions)
    return [list(c.token_ids) for c in completions]


def assert_follows(oracle: Oracle, prompts: list[list[int]], outputs: list[list[int]]) -> None:
    """The first request against transformers' own generate; all of them against its argmax at every position."""
    assert outputs[0] == oracle.greedy(prompts[0], len(outputs[0]))
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output == oracle.argmaxes(prompt, output)


@pytest.mark.parametrize("kind", ["markov", "echo", "chaotic"])
@pytest.mark.parametrize("batch", [1, 16])
def test_designed_checkpoints_follow_transformers_for_200_tokens(kind, batch, request):
    path = request.getfixturevalue(kind)
    prompts = mixed_prompts(batch, checkpoints.VOCAB, longest=60)
    assert_follows(Oracle(path), prompts, generated(path, prompts, 200))


@pytest.mark.parametrize("batch", [1, 16])
def test_the_shipped_model_follows_transformers(batch):
    llm = LLM(NANO)
    text = (NANO.parent.parent / "qwen3lab" / "engine" / "scheduler.py").read_text()
    ids = llm.tokenizer.encode(text)
    rng = random.Random(1)
    prompts = []
    for _ in range(batch):
        start = rng.randrange(len(ids) - 120)
        prompts.append(ids[start : start + rng.randint(5, 120)])
    assert_follows(Oracle(NANO), prompts, generated(NANO, prompts, 200))


@pytest.mark.parametrize("page_size", [1, 8, 256])
def test_page_size_changes_no_token(chaotic, page_size):
    prompts = mixed_prompts(6, checkpoints.VOCAB, longest=70, seed=2)
    pages = 6 * (-(-130 // page_size))
    assert generated(chaotic, prompts, 60, block_size=page_size, num_kv_blocks=pages) == generated(chaotic, prompts, 60)


def test_a_pool_that_preempts_changes_no_token(chaotic):
    prompts = mixed_prompts(8, checkpoints.VOCAB, longest=40, seed=3)
    llm = LLM(chaotic, block_size=8, num_kv_blocks=14)  # one row needs up to 10
    completions = llm.generate(prompts, SamplingParams(max_tokens=40, ignore_eos=True), use_tqdm=False)
    assert llm._scheduler.num_preemptions > 0, "the pool never ran dry, so this tests nothing"
    assert [list(c.token_ids) for c in completions] == generated(chaotic, prompts, 40)


def test_rows_scattered_over_the_pool_change_no_token(chaotic):
    """Pages of one row that do not follow one another are gathered; interleaved rows with small pages see to it."""
    prompts = mixed_prompts(4, checkpoints.VOCAB, longest=9, seed=4)
    llm = LLM(chaotic, block_size=2, num_kv_blocks=200)
    for prompt in prompts:
        llm.add_request(prompt, SamplingParams(max_tokens=30, ignore_eos=True))
    for _ in range(10):
        llm.step()
    scattered = [r for r in llm._scheduler.running if r.pages != list(range(r.pages[0], r.pages[0] + len(r.pages)))]
    assert scattered, "every row is contiguous, so this tests nothing"
    done = []
    while llm.has_unfinished:
        done += llm.step()
    done.sort(key=lambda c: c.request_id)
    assert [list(c.token_ids) for c in done] == generated(chaotic, prompts, 30, block_size=16)


@pytest.mark.parametrize("length", [1, 2, 127, 128, 129, 1000, 4095, 4096])
def test_prompts_of_every_length(chaotic, length):
    """Around the edges of a page (128 on a CPU), and as long as nobody's first prompt is."""
    rng = random.Random(length)
    prompt = [rng.randrange(checkpoints.VOCAB) for _ in range(length)]
    (output,) = generated(chaotic, [prompt], 16, block_size=128, num_kv_blocks=40)
    assert output == Oracle(chaotic).argmaxes(prompt, output)


@pytest.mark.parametrize("backwards", [False, True])
def test_one_token_beside_five_thousand(chaotic, backwards):
    """Rows of very different lengths in one step: the short row's padding weighs nothing, no logprob is NaN."""
    rng = random.Random(8)
    prompts = [[rng.randrange(checkpoints.VOCAB) for _ in range(n)] for n in (1, 5000, 2, 1)]
    prompts = prompts[::-1] if backwards else prompts
    llm = LLM(chaotic, block_size=16, num_kv_blocks=400)
    done = llm.generate(prompts, SamplingParams(max_tokens=12, ignore_eos=True, logprobs=1), use_tqdm=False)
    oracle = Oracle(chaotic)
    for prompt, completion in zip(prompts, done, strict=True):
        assert list(completion.token_ids) == oracle.argmaxes(prompt, list(completion.token_ids))
        assert all(math.isfinite(lp.chosen) and lp.chosen <= 0 for lp in completion.logprobs)


@pytest.mark.parametrize("budget", [1, 7, 8, 16, 17, 64, 4096])
def test_the_token_budget_of_a_step_changes_no_token(chaotic, budget):
    """Prompts around and over the budget: each finishes, none waits for ever."""
    rng = random.Random(9)
    prompts = [[rng.randrange(checkpoints.VOCAB) for _ in range(n)] for n in (15, 16, 17, 31, 32, 33, 100)]
    outputs = generated(chaotic, prompts, 20, block_size=8, max_num_batched_tokens=budget)
    assert outputs == generated(chaotic, prompts, 20)


@pytest.mark.parametrize("page_size", [1, 8, 16, 256])
@pytest.mark.parametrize("prefix", [False, True], ids=["plain", "prefix caching"])
def test_a_pool_of_just_what_the_largest_request_needs(chaotic, page_size, prefix):
    """Its last token needs no page. Every other request makes way for it, or waits; each token is right."""
    prompts = mixed_prompts(5, checkpoints.VOCAB, longest=40, seed=10)
    prompts[2] = [(7 * i) % checkpoints.VOCAB for i in range(44)]
    held = 44 + 30 - 1
    options = {"block_size": page_size, "num_kv_blocks": -(-held // page_size), "enable_prefix_caching": prefix}
    assert generated(chaotic, prompts, 30, **options) == generated(chaotic, prompts, 30)


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 17, 60])
def test_however_often_a_request_is_preempted_each_token_comes_once(markov, max_tokens):
    """The pool fits one and a half of them, and an EOS waits inside: lengths, reasons and ids are those of a chain."""
    llm = LLM(markov, block_size=4, num_kv_blocks=24)
    stop = 100
    prompts = [[0] * (3 + 5 * i) + [60 + 5 * i] for i in range(7)]
    params = SamplingParams(max_tokens=max_tokens, stop_token_ids=[stop])
    for prompt, completion in zip(prompts, llm.generate(prompts, params, use_tqdm=False), strict=True):
        length = min(max_tokens, stop - prompt[-1])
        assert completion.token_ids == tuple(prompt[-1] + 1 + i for i in range(length))
        assert completion.finish_reason == ("stop" if completion.token_ids[-1] == stop else "length")
        assert len(completion.metrics.token_times_s) == length
    if max_tokens == 60:
        assert llm._scheduler.num_preemptions > 3, "hardly anyone was preempted, so this tests little"


def test_the_same_call_gives_the_same_ids(chaotic):
    prompts = mixed_prompts(8, checkpoints.VOCAB, longest=50, seed=11)
    llm = LLM(chaotic, dtype="bfloat16", num_kv_blocks=100)
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    first, again = (llm.generate(prompts, params, use_tqdm=False) for _ in range(2))
    assert [c.token_ids for c in first] == [c.token_ids for c in again]


def test_batch_mates_part_a_bfloat16_request_only_at_near_ties(chaotic):
    """Alone, eight of it, and among 31 others: where ids part, fp32's logits of the two ids lie within rounding."""
    rng = random.Random(12)
    prompt = [rng.randrange(checkpoints.VOCAB) for _ in range(30)]
    llm = LLM(chaotic, dtype="bfloat16", num_kv_blocks=300)
    params = SamplingParams(max_tokens=64, ignore_eos=True)
    oracle = Oracle(chaotic)
    bf16 = Oracle(chaotic, dtype=torch.bfloat16)
    allowed = 2 * float(oracle.gaps(prompt, bf16.greedy(prompt, 64)).max()) + 0.05
    (alone,) = llm.generate([prompt], params, use_tqdm=False)
    crowd = llm.generate([prompt] * 8, params, use_tqdm=False)
    others = mixed_prompts(31, checkpoints.VOCAB, longest=50, seed=13)
    amid = llm.generate([*others[:15], prompt, *others[15:]], params, use_tqdm=False)[15]
    for completion in (alone, *crowd, amid):
        assert float(oracle.gaps(prompt, list(completion.token_ids)).max()) <= allowed


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
        {"head_dim": 64, "rope_theta": 1e6},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}, "rope_theta": None},
    ],
    ids=["tied", "one KV head per query head", "one KV head for all", "wide heads", "theta inside rope_parameters"],
)
def test_every_form_of_checkpoint(tmp_path, changes):
    changes = {k: v for k, v in changes.items() if v is not None}
    path = checkpoints.chaotic(tmp_path / "model", **changes)
    prompts = mixed_prompts(3, checkpoints.VOCAB, longest=40, seed=5)
    oracle = Oracle(path)
    assert generated(path, prompts, 40) == [oracle.greedy(p, 40) for p in prompts]


def test_shards_give_the_same_model(tmp_path, chaotic):
    path = checkpoints.chaotic(tmp_path / "model", shards=3)
    prompts = mixed_prompts(3, checkpoints.VOCAB, longest=40, seed=6)
    assert generated(path, prompts, 40) == generated(chaotic, prompts, 40)


def test_head_dim_absent_means_hidden_over_heads(tmp_path):
    config = checkpoints.config(head_dim=16)
    tensors = checkpoints.random_tensors(config)
    del config["head_dim"]
    path = checkpoints.write(tmp_path / "model", config | {"num_attention_heads": 4}, tensors)
    assert LLM(path, num_kv_blocks=10).model_config.head_dim == 16


def test_bfloat16_stays_near_the_reference(chaotic):
    """bf16 has 8 bits: an emitted id may lie below the fp32 maximum by rounding, never by a wrong context."""
    prompts = mixed_prompts(4, checkpoints.VOCAB, longest=50, seed=7)
    llm = LLM(chaotic, dtype="bfloat16", num_kv_blocks=100)
    assert llm.facts.dtype == "bfloat16"
    oracle = Oracle(chaotic)
    completions = llm.generate(prompts, SamplingParams(max_tokens=100, ignore_eos=True), use_tqdm=False)
    worst = max(float(oracle.gaps(p, list(c.token_ids)).max()) for p, c in zip(prompts, completions, strict=True))
    # Calibrated on transformers' own bf16 over the same prompts, whose worst gap is computed here, not remembered.
    bf16 = Oracle(chaotic, dtype=torch.bfloat16)
    own = max(float(oracle.gaps(p, bf16.greedy(p, 100)).max()) for p in prompts)
    assert worst <= 2 * own + 0.05, (worst, own)


def test_the_designed_chain_holds_in_bfloat16(markov):
    outputs = LLM(markov, dtype="bfloat16", num_kv_blocks=100).generate([[7]], SamplingParams(max_tokens=300), False)
    assert list(outputs[0].token_ids) == [(8 + i) % checkpoints.VOCAB for i in range(300)]
