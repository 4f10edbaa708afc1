"""Greedy tokens in fp32 equal transformers' exactly, whatever the batch, the page size, the pool or the form."""

from __future__ import annotations

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
