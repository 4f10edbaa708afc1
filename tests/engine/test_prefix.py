"""Shared prefixes: what is found is what was written, what differs is not found, and no token changes for it."""

from __future__ import annotations

import random

import pytest

import checkpoints
from qwen3lab import LLM, SamplingParams
from qwen3lab.engine import prefix
from qwen3lab.engine.blocks import BlockPool
from qwen3lab.engine.prefix import ROOT, PrefixIndex

SIZE = 16


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A vocabulary in which ids can differ by 256 and by 65,536."""
    return checkpoints.chaotic(tmp_path_factory.mktemp("wide") / "m", vocab_size=70_000)


def cached(path, **options) -> LLM:
    return LLM(
        path, dtype="float32", **({"enable_prefix_caching": True, "block_size": SIZE, "num_kv_blocks": 60} | options)
    )


def ids_of(llm: LLM, prompts: list[list[int]], max_tokens: int = 12):
    completions = llm.generate(prompts, SamplingParams(max_tokens=max_tokens, ignore_eos=True), use_tqdm=False)
    llm._scheduler.check_integrity()
    assert all(c.error is None for c in completions)
    return [list(c.token_ids) for c in completions], [c.metrics.num_cached_tokens for c in completions]


def words(length: int, seed: int = 0, vocab: int = checkpoints.VOCAB) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(vocab) for _ in range(length)]


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 48])
def test_a_prompt_again_computes_what_is_not_held_and_at_least_its_last_token(chaotic, length):
    prompt = words(length)
    ((fresh,), _) = ids_of(LLM(chaotic, num_kv_blocks=60, block_size=SIZE), [prompt])
    llm = cached(chaotic)
    held = min(length // SIZE * SIZE, length - 1)
    assert ids_of(llm, [prompt]) == ([fresh], [0])
    # In one step both would start before anything is written, so the second call is what can find it.
    assert ids_of(llm, [prompt]) == ([fresh], [held])
    assert ids_of(llm, [prompt, prompt]) == ([fresh, fresh], [held, held])
    assert llm.traces[-1].tokens == 2  # both decoded in one step, from pages they share


def test_two_equal_prompts_of_one_step_do_not_read_what_is_not_written(chaotic):
    prompt = words(40)
    ((fresh,), _) = ids_of(LLM(chaotic, num_kv_blocks=60), [prompt])
    assert ids_of(cached(chaotic), [prompt, prompt]) == ([fresh, fresh], [0, 0])


def test_generated_text_is_found_by_the_prompt_that_continues_it(chaotic):
    llm, prompt = cached(chaotic), words(20)
    ((answer,), _) = ids_of(llm, [prompt], max_tokens=30)
    turn = prompt + answer + words(5, seed=1)
    ((fresh,), _) = ids_of(LLM(chaotic, num_kv_blocks=60), [turn])
    # The last generated id has no K and V: nothing read it. 49 positions are written, three pages of them full.
    assert ids_of(llm, [turn]) == ([fresh], [48])


@pytest.mark.parametrize("difference", [1, 256, 65_536])
@pytest.mark.parametrize("at", [0, 15, 16, 31])
def test_ids_that_differ_anywhere_share_nothing_from_there_on(wide, difference, at):
    first = words(40, vocab=4000)
    second = [*first[:at], first[at] + difference, *first[at + 1 :]]
    llm = cached(wide)
    ids_of(llm, [first])
    ((fresh,), _) = ids_of(LLM(wide, num_kv_blocks=60, block_size=SIZE), [second])
    assert ids_of(llm, [second]) == ([fresh], [at // SIZE * SIZE])


def test_the_same_page_elsewhere_is_another_page(chaotic):
    one, two = words(SIZE, seed=1), words(SIZE, seed=2)
    for prompt in ([*two, *one, 5], [*two, 5], [*one, *one, 5]):
        llm = cached(chaotic)
        ids_of(llm, [[*one, *two, 5]])
        ((fresh,), _) = ids_of(LLM(chaotic, num_kv_blocks=60, block_size=SIZE), [prompt])
        (tokens, (held,)) = ids_of(llm, [prompt])
        assert tokens == [fresh]
        assert held == (SIZE if prompt[:SIZE] == one else 0)


def test_a_collision_of_hashes_is_not_a_hit(monkeypatch):
    monkeypatch.setattr(prefix, "page_key", lambda parent, token_ids: b"the same for all")
    index = PrefixIndex(2)
    key = index.file(3, ROOT, [1, 2])
    assert index.find([1, 2, 9]) == ([3], key)
    assert index.find([1, 3, 9]) == ([], ROOT)
    index.file(4, ROOT, [1, 3])  # the place is taken: not filed, so not found either
    assert 4 not in index


def test_a_page_that_is_not_full_is_never_filed():
    with pytest.raises(AssertionError, match="it is not full"):
        PrefixIndex(4).file(1, ROOT, [1, 2, 3])


def test_the_page_idle_for_longest_is_given_up_first():
    index = PrefixIndex(1)
    pool = BlockPool(4, 1, index)
    pages = pool.allocate(3)
    for page in pages:
        index.file(page, ROOT, [page])
    for page in (pages[1], pages[0], pages[2]):
        pool.free([page])
    pool.share([pages[1]])
    pool.free([pages[1]])  # wanted again a moment ago
    assert [pool.allocate(1)[0] for _ in range(3)] == [pages[0], pages[2], pages[1]]
    assert len(index) == 0


def test_a_full_pool_gives_up_idle_pages_and_nothing_else(chaotic):
    """More distinct prompts than the pool can remember, some again: every answer is the fresh one."""
    llm = cached(chaotic, num_kv_blocks=12)
    fresh = LLM(chaotic, num_kv_blocks=12, block_size=SIZE)
    rng = random.Random(3)
    hits = 0
    for _ in range(40):
        prompts = [words(rng.choice([17, 33, 40]), seed=rng.randrange(4)) for _ in range(rng.randint(1, 4))]
        (tokens, held) = ids_of(llm, prompts)
        assert tokens == ids_of(fresh, prompts)[0]
        hits += sum(held)
    assert hits > 0
    assert llm._scheduler.pool.num_free == llm._scheduler.pool.num_usable


def test_a_preempted_request_finds_its_own_pages(chaotic):
    prompts = [words(30, seed=i) for i in range(8)]
    llm = cached(chaotic, block_size=8, num_kv_blocks=14)
    (tokens, _) = ids_of(llm, prompts, max_tokens=40)
    assert llm._scheduler.num_preemptions > 0, "the pool never ran dry, so this tests nothing"
    assert tokens == ids_of(LLM(chaotic, num_kv_blocks=100), prompts, max_tokens=40)[0]


def test_a_request_that_ended_by_an_error_leaves_nothing_to_find(tmp_path):
    llm = cached(checkpoints.overflowing(tmp_path / "m", at=99))
    (bad,) = llm.generate([[*range(40), 99]], use_tqdm=False)
    assert bad.finish_reason == "error"
    assert len(llm._scheduler.pool.index) == 0


def test_off_unless_asked_for(chaotic):
    llm, prompt = LLM(chaotic, num_kv_blocks=60, block_size=SIZE), words(40)
    assert ids_of(llm, [prompt])[1] == ids_of(llm, [prompt])[1] == [0]
    with pytest.raises(ValueError, match="enable_prefix_caching='yes', allowed: True, False"):
        LLM(chaotic, enable_prefix_caching="yes")
